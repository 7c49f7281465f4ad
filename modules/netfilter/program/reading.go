package program

import (
	"context"
	"fmt"
	"hash/maphash"
	"slices"

	"github.com/portway/portway/modules/netfilter"
)

// digests tell what is in each of our chains, without keeping the rules:
// those of 10,000 Services would fill 40 MB. Two different chains have the
// same digest once in 2^64 times.
type digests map[ChainID]digest

type digest struct {
	sum   uint64
	rules int
}

// digester makes digests that can be compared with each other.
type digester struct {
	seed maphash.Seed
	text []byte
	// printed is how our chains were printed when they were last read.
	printed map[ChainID]printed
}

// printed is a chain as text, and the digest of the rules that it was read as: most
// chains are printed as they were the last time, and need not be read again.
type printed struct {
	text  uint64
	rules digest
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
	odd map[ChainID][]netfilter.Rule
	// hooks are the kernel's own chains, whole.
	hooks map[ChainID][]netfilter.Rule
	sets  []netfilter.Set
}

// reader reads all that is ours. Rules are kept of chains that differ from what
// is expected, if anything is.
type reader struct {
	*Program
	expect  digests
	observe func(ChainID, []netfilter.Rule)
}

func (r reader) read(ctx context.Context) (*reading, error) {
	got := newReading()
	for _, h := range r.Layout.Hooks {
		got.hooks[h.ID] = nil // a table of iptables-legacy that nobody has used has no chains
	}
	if err := r.save(ctx, got); err != nil {
		return nil, fmt.Errorf("read the rules for %s: %w", r.Layout.Family, err)
	}
	return got, r.readSets(ctx, got)
}

// skimming is a kernel that need not parse what is known.
type skimming interface {
	SaveUnknown(ctx context.Context, tables []netfilter.Table, known netfilter.Known, visit func(netfilter.Table, netfilter.Chain) error) error
}

// save reads the rules.
func (r reader) save(ctx context.Context, got *reading) error {
	k, ok := r.Kernel.(skimming)
	if !ok {
		return r.Kernel.Save(ctx, r.Layout.Tables, func(t netfilter.Table, c netfilter.Chain) error {
			r.chain(got, ChainID{t, c.Name}, c)
			return nil
		})
	}
	now := make(map[ChainID]printed)
	var text uint64 // of the chain that is visited next
	known := func(t netfilter.Table, chain string, rules []byte) bool {
		if !r.Layout.OwnsChain(t, chain) {
			return true
		}
		id := ChainID{t, chain}
		text = maphash.Bytes(r.digest.seed, rules)
		was, ok := r.digest.printed[id]
		if !ok || was.text != text || r.observe != nil || r.isOdd(id, was.rules) {
			return false
		}
		got.chains[id], now[id] = was.rules, was
		return true
	}
	err := k.SaveUnknown(ctx, r.Layout.Tables, known, func(t netfilter.Table, c netfilter.Chain) error {
		id := ChainID{t, c.Name}
		r.chain(got, id, c)
		if sum, ours := got.chains[id]; ours && len(c.Rules) > 0 {
			now[id] = printed{text, sum}
		}
		return nil
	})
	if err == nil {
		r.digest.printed = now
	}
	return err
}

// isOdd tells whether a chain is not as it is expected to be, if anything is.
func (r reader) isOdd(id ChainID, is digest) bool {
	want, ok := r.expect[id]
	return r.expect != nil && (!ok || want != is)
}

func newReading() *reading {
	return &reading{
		chains: make(digests), odd: make(map[ChainID][]netfilter.Rule), hooks: make(map[ChainID][]netfilter.Rule),
	}
}

func (p *Program) readSets(ctx context.Context, r *reading) (err error) {
	if r.sets, err = p.Kernel.Sets(ctx, p.Layout.OwnsSet); err != nil {
		return fmt.Errorf("read the ipsets for %s: %w", p.Layout.Family, err)
	}
	return nil
}

func (r reader) chain(got *reading, id ChainID, c netfilter.Chain) {
	if c.Policy != "" {
		got.hooks[id] = slices.Clone(c.Rules)
		return
	}
	if !r.Layout.OwnsChain(id.Table, id.Name) {
		return
	}
	sum := r.digest.of(c.Rules)
	got.chains[id] = sum
	if r.isOdd(id, sum) {
		got.odd[id] = slices.Clone(c.Rules)
	}
	if r.observe != nil {
		r.observe(id, c.Rules)
	}
}

// remembered is what a reading of the rules would find if they are as we left
// them.
func (p *Program) remembered() *reading {
	r := newReading()
	r.remembered, r.chains = true, p.have
	for _, h := range p.Layout.Hooks {
		r.hooks[h.ID] = h.Jumps
	}
	return r
}
