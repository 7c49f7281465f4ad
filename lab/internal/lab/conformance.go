package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/portway/portway/lab/internal/cluster"
	"github.com/portway/portway/lab/internal/command"
	"github.com/portway/portway/lab/internal/conformance"
	"github.com/portway/portway/lab/internal/products"
	"github.com/portway/portway/lab/internal/step"
)

// ConformanceOptions are what a person chooses of a run of upstream's specs.
type ConformanceOptions struct {
	Label  string // only specs with it; empty: all that are expected
	Frozen bool   // take the agents away before, and let their rules stay
	Procs  int    // how many specs run at a time
}

// The workers that specs need: two for each of three zones, for some.
const (
	allWorkers = 6
	fewWorkers = 2 // with a label
)

// conformanceRun is one run of `lab conformance`.
type conformanceRun struct {
	*Lab
	ConformanceOptions
	list  conformance.List
	want  []conformance.Expected
	suite products.Suite
	out   string // the directory of the report
}

// Conformance runs upstream's specs about Services in the lab and compares what
// passes with what must.
func (l *Lab) Conformance(ctx context.Context, o ConformanceOptions) error {
	unlock, err := l.hold()
	if err != nil {
		return err
	}
	defer unlock()
	r := &conformanceRun{Lab: l, ConformanceOptions: o}
	if err := r.plan(); err != nil {
		return err
	}
	err = step.Run(ctx, l.Out, r.steps())
	if r.Frozen {
		back := []step.Step{{Name: "Put the agents back", Run: r.thaw}}
		err = errors.Join(err, step.Run(context.WithoutCancel(ctx), l.Out, back))
	}
	if err != nil {
		return err
	}
	return r.judge()
}

// plan refuses what cannot work, before anything is compiled.
func (r *conformanceRun) plan() (err error) {
	if r.list, err = conformance.Load(); err != nil {
		return err
	}
	options := r.state.Options
	workers := allWorkers
	if r.Label != "" {
		workers = fewWorkers
	}
	if options.Workers < workers {
		return fmt.Errorf("the specs need %d workers, and the lab has %d: make lab-down, then make lab-up MODE=%s NODES=%d",
			workers, options.Workers, options.Mode, workers)
	}
	if r.Frozen && options.Proxy != cluster.Portway {
		return fmt.Errorf("the lab runs %s, and only Portway's agents are frozen", options.Proxy)
	}
	if r.want, _ = r.list.Select(options.Mode, r.Label); len(r.want) == 0 {
		return fmt.Errorf("no spec of the list has the label %q", r.Label)
	}
	name := options.Proxy + "-" + options.Mode + "-" + options.Family
	for _, part := range []string{r.Label, map[bool]string{true: "frozen"}[r.Frozen]} {
		if part != "" {
			name += "-" + part
		}
	}
	r.out = filepath.Join(r.repo, "build", "conformance", name)
	return nil
}

func (r *conformanceRun) steps() []step.Step {
	steps := []step.Step{{Name: "Compile upstream's end-to-end tests (minutes, the first time)", Run: func(ctx context.Context, note func(string)) (err error) {
		r.suite, err = r.maker().Suite(ctx, note)
		return err
	}}}
	if r.state.Offline {
		steps = append(steps, step.Step{Name: "Put the images that they name on the nodes", Run: r.images})
	}
	if r.Frozen {
		steps = append(steps, step.Step{Name: "Take the agents away", Run: r.freeze})
	}
	return append(steps, step.Step{Name: fmt.Sprintf("Run %d specs, %d at a time", len(r.want), r.Procs), Run: r.specs})
}

// images loads them unless the nodes have them.
func (r *conformanceRun) images(ctx context.Context, note func(string)) error {
	archive, err := r.maker().SuiteImages(ctx, r.suite, r.state.PodRootfs, note)
	if err != nil || r.state.SuiteImages == filepath.Base(archive) {
		return err
	}
	if err := r.loadArchive(ctx, archive, note); err != nil {
		return err
	}
	r.state.SuiteImages = filepath.Base(archive)
	return r.save()
}

// freeze leaves the kernels of the nodes as the agents made them, and nobody who
// follows a change.
func (r *conformanceRun) freeze(ctx context.Context, _ func(string)) error {
	if err := r.patchAgents(ctx, `"none"`); err != nil {
		return err
	}
	_, err := r.kubectl().Output(ctx, "--namespace=kube-system", "wait", "--for=delete", "pods",
		"--selector=app.kubernetes.io/name=portway", "--timeout=120s")
	return err
}

func (r *conformanceRun) thaw(ctx context.Context, _ func(string)) error {
	if err := r.patchAgents(ctx, "null"); err != nil {
		return err
	}
	_, err := r.kubectl().Output(ctx, "--namespace=kube-system", "rollout", "status", "daemonset/portway", "--timeout=180s")
	return err
}

// patchAgents sets the label that nodes must have for an agent; null takes it
// away.
func (r *conformanceRun) patchAgents(ctx context.Context, label string) error {
	patch := `{"spec":{"template":{"spec":{"nodeSelector":{"portway-lab/agents":` + label + `}}}}}`
	_, err := r.kubectl().Output(ctx, "--namespace=kube-system", "patch", "daemonset", "portway", "--type=merge", "--patch="+patch)
	return err
}

const reportFile = "ginkgo.json"

// specs runs them. That some fail is no error here: the report tells.
func (r *conformanceRun) specs(ctx context.Context, note func(string)) (err error) {
	if err := os.RemoveAll(r.out); err != nil {
		return fmt.Errorf("old report: %w", err)
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	log, err := os.Create(filepath.Join(r.out, "e2e.log"))
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	done := &dots{Writer: log, count: func(n int) { note(fmt.Sprintf("%d of %d, see %s", n, len(r.want), log.Name())) }}
	cmd := command.New(r.suite.Ginkgo, "run", "--procs="+strconv.Itoa(r.Procs), "--timeout=4h", "--no-color",
		"--focus="+conformance.Focus(r.want), "--json-report="+reportFile, "--output-dir="+r.out, r.suite.Tests, "--",
		"--provider=skeleton", "--kubeconfig="+r.kubeconfig(), "--kubectl-path="+r.state.Kubectl,
		"--num-nodes="+strconv.Itoa(r.state.Options.Workers))
	cmd.Stdout = done
	_, runErr := r.run.Run(ctx, cmd)
	if _, err := os.Stat(filepath.Join(r.out, reportFile)); err != nil {
		return errors.Join(runErr, fmt.Errorf("report of the specs: %w", err))
	}
	return nil
}

// dots passes on what Ginkgo prints, and counts the dots with which it marks each
// spec that has run.
type dots struct {
	io.Writer
	seen  int
	count func(seen int)
}

func (d *dots) Write(p []byte) (int, error) {
	if n := bytes.Count(p, []byte("•")); n > 0 {
		d.seen += n
		d.count(d.seen)
	}
	return d.Writer.Write(p)
}

// judge writes the report and fails if the run does not show what it must.
func (r *conformanceRun) judge() (err error) {
	run, err := conformance.Read(filepath.Join(r.out, reportFile))
	if err != nil {
		return err
	}
	o := r.list.Judge(run, r.state.Options.Mode, r.Label, r.Frozen)
	file, err := os.Create(filepath.Join(r.out, "report.md"))
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	title := []string{"Upstream's specs, Kubernetes " + products.KubernetesVersion, r.state.Options.String()}
	if r.Frozen {
		title = append(title, "without agents")
	}
	if err := o.Write(file, strings.Join(title, ", ")); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	fmt.Fprintf(r.Out, "%s. Report: %s\n", o.Summary(), file.Name())
	return o.Err()
}
