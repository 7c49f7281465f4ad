package iptables

import (
	"hash/fnv"
	"math/bits"
	"net/netip"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
)

// fanOut is how many endpoints a chain chooses from in one step, on average.
// A pool with more of them gets a tree of two levels, so that a flow passes
// about twice the square root of their number, and a change of one endpoint
// rewrites one small chain and the probabilities above it.
const fanOut = 32

// pool adds the chains that choose among the endpoints of a pool.
func (w *writer) pool(p *dataplane.Pool) {
	chain := poolChain(w.sp.Name, p.Scope)
	rules := w.marks[p]
	if w.sp.Affinity > 0 {
		rules = append(rules, w.bound(p)...)
	}
	w.out.AddChain(netfilter.NAT, chain, append(rules, w.choose(p, chain)...)...)
	for _, e := range p.Endpoints {
		if e.Local {
			w.enter(setLoopBack, loopBackEntry(e, w.sp.Name.Protocol))
		}
	}
}

// loopBackEntry matches, after DNAT, a flow of an endpoint to itself.
func loopBackEntry(e dataplane.Endpoint, p dataplane.Protocol) netfilter.SetEntry {
	a := e.Addr.Addr()
	return netfilter.SetEntry{
		Net: netip.PrefixFrom(a, a.BitLen()), Protocol: p, Port: e.Addr.Port(), Second: a,
	}
}

// choose picks one of the endpoints by chance.
func (w *writer) choose(p *dataplane.Pool, chain string) []netfilter.Rule {
	groups := groupsFor(len(p.Endpoints))
	if groups == 1 {
		return w.pick(w.options(p, p.Endpoints))
	}
	members := make([][]dataplane.Endpoint, groups)
	for _, e := range p.Endpoints {
		g := groupOf(e.Addr, groups)
		members[g] = append(members[g], e)
	}
	var top []option
	for g, es := range members {
		if len(es) == 0 {
			continue
		}
		name := groupChain(chain, g)
		inGroup := w.options(p, es)
		w.out.AddChain(netfilter.NAT, name, w.pick(inGroup)...)
		top = append(top, option{weightOf(inGroup), netfilter.Jump(name)})
	}
	return w.pick(top)
}

// groupsFor is a power of two, so that it rarely changes when endpoints come
// and go; at most 256, which is what the names have room for.
func groupsFor(endpoints int) int {
	if endpoints <= fanOut {
		return 1
	}
	return min(1<<bits.Len(uint((endpoints-1)/fanOut)), 256)
}

// groupOf depends on the endpoint alone, so that others stay where they are.
func groupOf(a netip.AddrPort, groups int) int {
	h := fnv.New32a()
	b, _ := a.MarshalBinary() // never fails
	_, _ = h.Write(b)
	return int(h.Sum32() % uint32(groups))
}

// option is something to choose, with its share.
type option struct {
	weight uint64
	target netfilter.Target
}

func weightOf(options []option) uint64 {
	var sum uint64
	for _, o := range options {
		sum += o.weight
	}
	return sum
}

// options are the endpoints as targets.
func (w *writer) options(p *dataplane.Pool, es []dataplane.Endpoint) []option {
	options := make([]option, len(es))
	for i, e := range es {
		target := netfilter.DNAT(e.Addr)
		if w.sp.Affinity > 0 {
			target = netfilter.Jump(endpointChain(w.sp.Name, p.Scope, e.Addr))
		}
		options[i] = option{uint64(e.Weight), target}
	}
	return options
}

// pick takes each option with the probability of its share in those that are
// left; the last one takes the rest.
func (w *writer) pick(options []option) []netfilter.Rule {
	rules := make([]netfilter.Rule, len(options))
	left := weightOf(options)
	for i, o := range options {
		rules[i] = w.to(o.target)
		if i < len(options)-1 {
			rules[i].Probability = share(o.weight, left)
		}
		left -= o.weight
	}
	return rules
}

// to is a rule with a target. DNAT to a port needs to know the protocol.
func (w *writer) to(t netfilter.Target) netfilter.Rule {
	if t.Kind == netfilter.TargetDNAT {
		return netfilter.Rule{Protocol: netfilter.Is(w.sp.Name.Protocol), Target: t}
	}
	return netfilter.Rule{Target: t}
}

// share is part/whole as the statistic match counts, in units of 2^-31, and
// at least one of them: zero would mean always.
func share(part, whole uint64) uint32 {
	return uint32(max((part<<31+whole/2)/whole, 1))
}

// bound sends clients back to the endpoint that they used last.
func (w *writer) bound(p *dataplane.Pool) []netfilter.Rule {
	seconds := uint32(w.sp.Affinity.Seconds())
	rules := make([]netfilter.Rule, len(p.Endpoints))
	for i, e := range p.Endpoints {
		set := affinitySet(w.sp.Name, p.Scope, e.Addr)
		chain := endpointChain(w.sp.Name, p.Scope, e.Addr)
		rules[i] = netfilter.Rule{
			Sets:   [2]netfilter.SetMatch{{Name: set, Parts: "src"}},
			Target: netfilter.Jump(chain),
		}
		w.out.Sets = append(w.out.Sets, newAffinitySet(set, w.family))
		w.out.AddChain(
			netfilter.NAT, chain,
			netfilter.Rule{Target: netfilter.AddSet(set, "src", max(seconds, 1))}, w.to(netfilter.DNAT(e.Addr)),
		)
	}
	return rules
}

// maxClients is how many clients an endpoint remembers. xt_recent, which
// kube-proxy uses, remembers 100 and is quadratic in the number of endpoints.
const maxClients = 1 << 18

// defaultTimeout of an affinity set plays no part: the timeout stands in the
// rule that adds an entry, so that a change of it keeps the set.
const defaultTimeout = 10800

// newAffinitySet is a set whose entries expire.
func newAffinitySet(name string, f dataplane.Family) netfilter.Set {
	return netfilter.Set{
		Name: name, Type: netfilter.HashIP, Family: f, MaxEntries: maxClients,
		Expires: true, Timeout: defaultTimeout,
	}
}
