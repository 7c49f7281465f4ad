package iptables

import (
	"context"
	"fmt"
	"hash/maphash"
	"slices"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
)

// digests tell what is in each of our chains, without keeping the rules:
// those of 10,000 Services would fill 40 MB. Two different chains have the
// same digest once in 2^64 times.
type digests map[chainID]digest

type digest struct {
	sum   uint64
	rules int
}

// digester makes digests that can be compared with each other.
type digester struct {
	seed maphash.Seed
	text []byte
}

func newDigester() *digester { return &digester{seed: maphash.MakeSeed()} }

func (d *digester) of(rules []netfilter.Rule) digest {
	d.text = d.text[:0]
	for i := range rules {
		d.text = append(rules[i].Append(d.text), '\n')
	}
	return digest{maphash.Bytes(d.seed, d.text), len(rules)}
}

// reading is what the kernel holds of ours.
type reading struct {
	// remembered: only the sets were read.
	remembered bool
	chains     digests
	// odd are the rules of the chains that are not as they were expected.
	odd map[chainID][]netfilter.Rule
	// hooks are the kernel's own chains, whole.
	hooks map[chainID][]netfilter.Rule
	sets  []netfilter.Set
	// claimed are the frontends to which the dispatch chains lead.
	claimed []dataplane.FrontendKey
}

// tables are those in which we own chains. In mangle that is only a chain of
// kube-proxy, which is removed.
func tables() []netfilter.Table {
	return []netfilter.Table{netfilter.Mangle, netfilter.Filter, netfilter.NAT}
}

// read reads all that is ours. Rules are kept of chains that differ from what
// is expected, if anything is.
func read(ctx context.Context, k netfilter.Kernel, f dataplane.Family, d *digester, expect digests) (*reading, error) {
	r := newReading()
	for _, h := range hooks() {
		r.hooks[h.id] = nil // a table of iptables-legacy that nobody has used has no chains
	}
	for _, t := range tables() {
		err := k.Save(ctx, t, func(c netfilter.Chain) error {
			r.chain(chainID{t, c.Name}, c, f, d, expect)
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("read the %s table for %s: %w", t, f, err)
		}
	}
	return r, r.readSets(ctx, k, f)
}

func newReading() *reading {
	return &reading{
		chains: make(digests), odd: make(map[chainID][]netfilter.Rule), hooks: make(map[chainID][]netfilter.Rule),
	}
}

func (r *reading) readSets(ctx context.Context, k netfilter.Kernel, f dataplane.Family) (err error) {
	if r.sets, err = k.Sets(ctx, func(name string) bool { return ownsSet(f, name) }); err != nil {
		return fmt.Errorf("read the ipsets for %s: %w", f, err)
	}
	return nil
}

func (r *reading) chain(id chainID, c netfilter.Chain, f dataplane.Family, d *digester, expect digests) {
	if c.Policy != "" {
		r.hooks[id] = slices.Clone(c.Rules)
		return
	}
	if !ownsChain(id.table, id.name) {
		return
	}
	sum := d.of(c.Rules)
	r.chains[id] = sum
	if want, ok := expect[id]; expect != nil && (!ok || want != sum) {
		r.odd[id] = slices.Clone(c.Rules)
	}
	if p, ok := parent(id); id.table == netfilter.NAT && (ok || p == id || oneOf(id.name, chainServices, chainNodePorts)) {
		r.claim(c.Rules, f)
	}
}

// claim notes the frontends that a dispatch chain knows, kube-proxy's too.
func (r *reading) claim(rules []netfilter.Rule, f dataplane.Family) {
	for i := range rules {
		rule := &rules[i]
		k := dataplane.FrontendKey{Addr: rule.Destination.Addr, Port: rule.DestPort.First, Protocol: rule.Protocol.Number}
		single := netfilter.MatchAddr(f.Unspecified()).Mask
		switch {
		case rule.DestPort.Last == 0 || rule.DestPort.First != rule.DestPort.Last || !jumps(rule.Target):
			continue
		case !k.Addr.IsValid():
			k.Addr = f.Unspecified()
		case rule.Destination.Mask != single || rule.Destination.Not:
			continue
		}
		r.claimed = append(r.claimed, k)
	}
}

func jumps(t netfilter.Target) bool {
	return t.Kind == netfilter.TargetJump || t.Kind == netfilter.TargetGoto
}
