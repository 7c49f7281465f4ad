package layers

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/portway/portway/tools/workspace"
)

// TestWorkspace checks the repository itself.
func TestWorkspace(t *testing.T) {
	root, err := workspace.Root(".")
	if err != nil {
		t.Fatal(err)
	}
	var patterns []string
	for _, modules := range Layers() {
		for _, module := range modules {
			patterns = append(patterns, "./"+module+"/...")
		}
	}
	t.Setenv("GOWORK", filepath.Join(root, "go.work"))
	graph, err := Load(t.Context(), root, patterns...)
	if err != nil {
		t.Fatal(err)
	}
	for _, violation := range Check(graph, Rules()) {
		t.Error(violation)
	}
}

// TestEveryModuleHasALayer keeps a new module from escaping the rules.
func TestEveryModuleHasALayer(t *testing.T) {
	root, err := workspace.Root(".")
	if err != nil {
		t.Fatal(err)
	}
	modules, err := workspace.Modules(root)
	if err != nil {
		t.Fatal(err)
	}
	placed := slices.Concat(append(Layers(), Outside())...)
	for _, module := range modules {
		if module.Member && !slices.Contains(placed, module.Dir) {
			t.Errorf("%s is neither in Layers nor in Outside", module.Dir)
		}
		placed = slices.DeleteFunc(placed, func(dir string) bool { return dir == module.Dir })
	}
	if len(placed) > 0 {
		t.Errorf("no such modules: %v", placed)
	}
}

// TestRules shows for each rule what breaks it and what does not.
func TestRules(t *testing.T) {
	const (
		dataplane   = workspace.Prefix + "modules/dataplane"
		laws        = dataplane + "/dataplanetest"
		netfilter   = workspace.Prefix + "modules/netfilter"
		cache       = workspace.Prefix + "modules/servicecache"
		iptables    = workspace.Prefix + "modules/iptables"
		iptablesSub = iptables + "/internal/names"
		conntrack   = workspace.Prefix + "modules/conntrack"
		agent       = workspace.Prefix + "services/agent"
		lab         = workspace.Prefix + "lab"
	)
	for _, test := range []struct {
		name  string
		graph Graph
		want  []string // rule: chain
	}{
		{
			name: "downwards",
			graph: Graph{
				agent:     {Imports: []string{cache, iptables, "k8s.io/client-go/kubernetes"}},
				cache:     {Imports: []string{dataplane, "k8s.io/api/core/v1"}},
				iptables:  {Imports: []string{iptablesSub, netfilter}, TestImports: []string{laws}},
				netfilter: {Imports: []string{dataplane, "github.com/coreos/go-iptables/iptables"}},
				laws:      {Imports: []string{dataplane, "pgregory.net/rapid"}},
				dataplane: {Imports: []string{"net/netip"}, TestImports: []string{"pgregory.net/rapid"}},
			},
		},
		{
			name:  "upwards",
			graph: Graph{netfilter: {Imports: []string{iptables}}},
			want:  []string{"one-way: " + netfilter + " " + iptables},
		},
		{
			name:  "sideways, in a test",
			graph: Graph{iptables: {TestImports: []string{conntrack}}},
			want:  []string{"one-way: " + iptables + " " + conntrack},
		},
		{
			name:  "product to lab",
			graph: Graph{agent: {Imports: []string{lab}}},
			want:  []string{"one-way: " + agent + " " + lab},
		},
		{
			name:  "contract with a dependency",
			graph: Graph{dataplane: {Imports: []string{"example.org/set"}}},
			want:  []string{"contract-standard-library: " + dataplane + " example.org/set"},
		},
		{
			name: "client-go through another's package",
			graph: Graph{
				iptablesSub:         {Imports: []string{"example.org/watch"}},
				"example.org/watch": {Imports: []string{"k8s.io/client-go/rest"}},
			},
			want: []string{"no-kubernetes-in-planes: " + iptablesSub + " example.org/watch k8s.io/client-go/rest"},
		},
		{
			name:  "kubernetes in the agent's tests",
			graph: Graph{agent: {TestImports: []string{"k8s.io/kubernetes/pkg/proxy"}}},
			want:  []string{"no-kubernetes-monolith: " + agent + " k8s.io/kubernetes/pkg/proxy"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			for _, v := range Check(test.graph, Rules()) {
				got = append(got, v.Rule.Name+": "+strings.Join(v.Chain, " "))
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(test.want, "\n\t"))
			}
		})
	}
}

// TestLoad reads a module made for the purpose with the real go command, and
// finds in it what breaks a rule.
func TestLoad(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"go.mod":              "module " + workspace.Prefix + "modules\n\ngo 1.26.0\n",
		"dataplane/d.go":      "package dataplane\n\nimport _ \"fmt\"\n",
		"netfilter/n.go":      "package netfilter\n",
		"netfilter/n_test.go": "package netfilter_test\n\nimport _ \"" + workspace.Prefix + "modules/iptables\"\n",
		"iptables/i.go":       "package iptables\n\nimport _ \"" + workspace.Prefix + "modules/dataplane\"\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("GOWORK", "off")
	graph, err := Load(t.Context(), dir, "./...")
	if err != nil {
		t.Fatal(err)
	}
	violations := Check(graph, Rules())
	if len(graph) != 3 || len(violations) != 1 || !violations[0].Test {
		t.Errorf("graph %v, violations %v", graph, violations)
	}
	if _, err := Load(t.Context(), dir, "./none"); err == nil {
		t.Error("no error for a package that does not exist")
	}
}
