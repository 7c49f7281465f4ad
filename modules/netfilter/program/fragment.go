package program

import (
	"slices"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
)

// A Source is a version of a ServicePort together with all else that its
// fragment depends on. Sources are compared with ==: equal ones give equal
// fragments, at any time.
type Source interface {
	ServicePort() *dataplane.ServicePort
	Fragment() *Fragment
}

// A Fragment is everything that one ServicePort needs in the kernel.
type Fragment struct {
	Name dataplane.ServicePortName
	// Chains belong to the ServicePort alone.
	Chains []OwnChain
	// Rules go into chains that it shares with others.
	Rules []SharedRule
	// Sets belong to the ServicePort alone; their entries are the kernel's.
	Sets []netfilter.Set
	// Entries go into sets that it shares with others.
	Entries []netfilter.SetChange
}

// OwnChain is a chain of one ServicePort.
type OwnChain struct {
	ID    ChainID
	Rules []netfilter.Rule
}

// SharedRule is what one frontend has in a chain of several: a few rules in a
// row. A frontend has no more than one such row in each chain.
type SharedRule struct {
	In    ChainID
	Key   dataplane.FrontendKey
	Owner dataplane.ServicePortName
	Rules []netfilter.Rule
}

// AddChain adds rules to a chain that belongs to the ServicePort alone.
func (f *Fragment) AddChain(t netfilter.Table, name string, rules ...netfilter.Rule) {
	if rules == nil {
		rules = []netfilter.Rule{} // an empty chain, not one that must go
	}
	f.Chains = append(f.Chains, OwnChain{ChainID{t, name}, rules})
}

// AddRules adds what a frontend has in a chain that is shared.
func (f *Fragment) AddRules(in ChainID, k dataplane.FrontendKey, rules ...netfilter.Rule) {
	for i := range f.Rules {
		if r := &f.Rules[i]; r.In == in && r.Key == k {
			r.Rules = append(r.Rules, rules...)
			return
		}
	}
	f.Rules = append(f.Rules, SharedRule{in, k, f.Name, rules})
}

// AddEntry adds an entry of a shared set, once.
func (f *Fragment) AddEntry(c netfilter.SetChange) {
	if !slices.Contains(f.Entries, c) {
		f.Entries = append(f.Entries, c)
	}
}
