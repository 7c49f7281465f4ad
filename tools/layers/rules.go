package layers

import (
	"strings"

	"github.com/portway/portway/tools/workspace"
)

// Rule says which packages must not depend on which.
type Rule struct {
	Name string
	// From tells the packages that the rule is about.
	From func(path string) bool
	// Denied tells what none of them may depend on, directly or through others.
	Denied func(from, to string) bool
	// Tests says whether the rule holds for what their tests import, too.
	Tests  bool
	Reason string
}

// Layers are the modules of the product, lowest first. A module imports only
// modules of lower layers, so those that share a layer never import each other.
func Layers() [][]string {
	return [][]string{
		{"modules/dataplane"},
		{"modules/netfilter", "modules/relay"},
		{"modules/servicecache", "modules/iptables", "modules/userspace", "modules/ipvs", "modules/conntrack", "modules/healthcheck"},
		{"services/agent", "services/ctl"},
	}
}

// Outside are the modules that are no part of the product: they may import it,
// and it must not import them.
func Outside() []string { return []string{"lab", "e2e", "bench", "tools"} }

// Rules are the ways that imports must not go.
func Rules() []Rule {
	return []Rule{
		{
			Name: "one-way",
			From: inProduct,
			Denied: func(from, to string) bool {
				return ours(to) && !sameModule(from, to) && !(inProduct(to) && layer(to) < layer(from))
			},
			Tests: true,
			Reason: "imports point one way, services -> servicecache, planes, conntrack, healthcheck -> netfilter, relay -> dataplane, " +
				"and planes never import each other: a mode can be added or removed without touching another",
		},
		{
			Name: "contract-standard-library",
			From: func(path string) bool {
				return within(path, ourPath("modules/dataplane")) && !within(path, ourPath("modules/dataplane/dataplanetest"))
			},
			Denied: func(_, to string) bool { return !standard(to) && !ours(to) },
			Reason: "whoever writes a plane or reads a Snapshot must not inherit dependencies: the contract needs the standard library only",
		},
		{
			Name: "no-kubernetes-in-planes",
			From: func(path string) bool {
				return within(path, ourPath("modules")) && !within(path, ourPath("modules/servicecache"))
			},
			Denied: func(_, to string) bool { return within(to, "k8s.io") },
			Tests:  true,
			Reason: "servicecache is the only module that knows Kubernetes types and decides policy: " +
				"a plane that sees a Service decides again, and modes drift apart",
		},
		{
			Name:   "no-kubernetes-monolith",
			From:   inProduct,
			Denied: func(_, to string) bool { return within(to, "k8s.io/kubernetes") },
			Tests:  true,
			Reason: "k8s.io/kubernetes is not a library: it promises no API and pins every module of its release",
		},
	}
}

func ourPath(dir string) string { return workspace.Prefix + dir }

func ours(path string) bool { return strings.HasPrefix(path, workspace.Prefix) }

func inProduct(path string) bool { return layer(path) >= 0 }

// layer is the index of the layer that a package is in, -1 outside the product.
func layer(path string) int {
	for i, modules := range Layers() {
		for _, module := range modules {
			if within(path, ourPath(module)) {
				return i
			}
		}
	}
	return -1
}

func sameModule(a, b string) bool {
	for _, modules := range Layers() {
		for _, module := range modules {
			if within(a, ourPath(module)) {
				return within(b, ourPath(module))
			}
		}
	}
	return false
}

// within says whether path is root or below it.
func within(path, root string) bool {
	return path == root || strings.HasPrefix(path, root+"/")
}
