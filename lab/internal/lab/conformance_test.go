package lab

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/portway/portway/lab/internal/cluster"
	"github.com/portway/portway/lab/internal/command"
)

func workers(n int) State {
	return State{Options: cluster.Options{Proxy: cluster.Portway, Mode: "iptables", Family: "ipv4", Workers: n}}
}

func TestPlanOfConformance(t *testing.T) {
	for _, tc := range []struct {
		name    string
		options ConformanceOptions
		state   State
		want    string // a part of the error, or of the report's directory
	}{
		{"all", ConformanceOptions{}, workers(6), "/repo/build/conformance/portway-iptables-ipv4"},
		{"all on few", ConformanceOptions{}, workers(2), "make lab-up MODE=iptables NODES=6"},
		{"few on few", ConformanceOptions{Label: "Conformance"}, workers(2), "portway-iptables-ipv4-Conformance"},
		{"no such label", ConformanceOptions{Label: "Conformation"}, workers(2), "no spec of the list"},
		{"frozen", ConformanceOptions{Frozen: true}, workers(6), "portway-iptables-ipv4-frozen"},
		{
			"frozen kube-proxy",
			ConformanceOptions{Frozen: true},
			State{Options: cluster.Options{Proxy: cluster.KubeProxy, Mode: "iptables", Workers: 6}},
			"only Portway's agents",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := &conformanceRun{Lab: &Lab{state: tc.state, repo: "/repo"}, ConformanceOptions: tc.options}
			err := r.plan()
			got := r.out
			if err != nil {
				got = err.Error()
			}
			if !strings.Contains(got, tc.want) {
				t.Errorf("plan is %q, want %q", got, tc.want)
			}
		})
	}
}

func TestStepsOfConformance(t *testing.T) {
	offline := workers(6)
	offline.Offline = true
	r := &conformanceRun{Lab: &Lab{state: offline}, ConformanceOptions: ConformanceOptions{Frozen: true, Procs: 3}}
	want := []string{"Compile upstream's", "Put the images", "Take the agents away", "Run 0 specs, 3 at a time"}
	if got := names(r.steps()); !slices.EqualFunc(got, want, strings.HasPrefix) {
		t.Errorf("steps are %q", got)
	}
	r = &conformanceRun{Lab: &Lab{state: workers(6)}}
	want = []string{"Compile upstream's", "Run 0 specs"}
	if got := names(r.steps()); !slices.EqualFunc(got, want, strings.HasPrefix) {
		t.Errorf("with a registry, steps are %q", got)
	}
}

// ginkgo is that program: it writes the report that it is given.
type ginkgo struct {
	report string
	err    error
	args   []string
}

func (g *ginkgo) Run(_ context.Context, c command.Cmd) (string, error) {
	g.args = c.Args
	if g.report == "" {
		return "", g.err
	}
	dir := ""
	for _, arg := range c.Args {
		if value, ok := strings.CutPrefix(arg, "--output-dir="); ok {
			dir = value
		}
	}
	return "", errors.Join(g.err, os.WriteFile(filepath.Join(dir, reportFile), []byte(g.report), 0o600))
}

func TestSpecsThatFailLeaveAReport(t *testing.T) {
	failed := errors.New("exit status 1")
	g := &ginkgo{err: failed, report: `[{"SpecReports": [{
		"ContainerHierarchyTexts": ["[sig-network] Services"], "LeafNodeType": "It",
		"LeafNodeText": "should prevent NodePort collisions", "State": "failed", "Failure": {"Message": "collided"}}]}]`}
	r := &conformanceRun{
		Lab:                &Lab{state: workers(6), repo: t.TempDir(), dir: "/state", run: g, Out: io.Discard},
		ConformanceOptions: ConformanceOptions{Procs: 3},
	}
	if err := r.plan(); err != nil {
		t.Fatal(err)
	}
	if err := r.specs(t.Context(), ignore); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"--procs=3", "--kubeconfig=/state/kubeconfig", "--num-nodes=6"} {
		if !slices.Contains(g.args, want) {
			t.Errorf("no %s in %q", want, g.args)
		}
	}
	if err := r.judge(); err == nil || !strings.Contains(err.Error(), "1 specs failed:\n  Services should prevent NodePort collisions") {
		t.Errorf("error is %v", err)
	}
	report, err := os.ReadFile(filepath.Join(r.out, "report.md"))
	if err != nil || !strings.Contains(string(report), "should prevent NodePort collisions (0s): collided") {
		t.Errorf("report is %s, %v", report, err)
	}
	g.report = ""
	if err := r.specs(t.Context(), ignore); !errors.Is(err, failed) {
		t.Errorf("without a report, the error is %v", err)
	}
}

// A write may hold several dots, and other text.
func TestDotsAreCounted(t *testing.T) {
	var out strings.Builder
	last := 0
	d := &dots{Writer: &out, count: func(n int) { last = n }}
	for _, text := range []string{"SS•S", "SSS", "• [FAILED]\n•"} {
		if _, err := io.WriteString(d, text); err != nil {
			t.Fatal(err)
		}
	}
	if last != 3 || out.String() != "SS•SSSS• [FAILED]\n•" {
		t.Errorf("counted %d of %q", last, out.String())
	}
}
