package program

import (
	"context"
	"sync"

	"golang.org/x/sys/unix"
)

// generational is a kernel that counts the writes to its rules, as nf_tables
// does, whoever makes them.
type generational interface {
	Generation(context.Context) (uint32, error)
}

// witness tells whether the rules are still as we left them, so that a look at
// those of 10,000 Services, which takes iptables-nft more than a second, can be
// spared. It is certain or says no: a write of others next to ours, in the same
// moment, is a reason to look.
type witness struct {
	known bool
	at    uint32 // as others counts
}

// Tally counts the writes to rules that the programs of a node make. The kernel
// has one generation for both families: without a common tally a write for one of
// them would look to the other like that of a stranger.
type Tally struct {
	mu sync.Mutex
	of map[uint64]uint32 // by network namespace
}

// here is the network namespace of the calling thread.
func here() uint64 {
	var ns unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &ns); err != nil {
		return 0 // and then all are alike
	}
	return ns.Ino
}

func (t *Tally) add(writes uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of == nil {
		t.of = make(map[uint64]uint32)
	}
	t.of[here()] += writes
}

func (t *Tally) count() uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.of[here()]
}

// others counts the writes of everybody else, by the kernel's generation; false if
// the kernel does not count.
func (p *Program) others(ctx context.Context) (uint32, bool) {
	k, ok := p.Kernel.(generational)
	if !ok {
		return 0, false
	}
	at, err := k.Generation(ctx)
	return at - p.Own.count(), err == nil
}

// untouched tells whether nobody has written rules since we did.
func (p *Program) untouched(ctx context.Context) bool {
	at, ok := p.others(ctx)
	return ok && p.witness.known && p.witness.at == at
}

// watchRead reads the rules, after which the witness knows them if nobody wrote
// meanwhile.
func (p *Program) watchRead(ctx context.Context, read func() error) error {
	before, ok1 := p.others(ctx)
	err := read()
	after, ok2 := p.others(ctx)
	p.witness = witness{at: after, known: ok1 && ok2 && err == nil && after == before}
	return err
}

// watchWrite writes rules, after which the witness still knows them if it did
// before and nobody else wrote.
func (p *Program) watchWrite(ctx context.Context, write func() (writes uint32, err error)) error {
	knew, before := p.untouched(ctx), p.witness.at
	writes, err := write()
	p.Own.add(writes)
	after, ok := p.others(ctx)
	p.witness = witness{at: after, known: knew && ok && err == nil && after == before}
	return err
}
