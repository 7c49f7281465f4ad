package program

import "context"

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
	at    uint32
}

// generation asks the kernel; false if it does not count.
func (p *Program) generation(ctx context.Context) (uint32, bool) {
	k, ok := p.Kernel.(generational)
	if !ok {
		return 0, false
	}
	at, err := k.Generation(ctx)
	return at, err == nil
}

// untouched tells whether nobody has written rules since we did.
func (p *Program) untouched(ctx context.Context) bool {
	at, ok := p.generation(ctx)
	return ok && p.witness.known && p.witness.at == at
}

// watchRead reads the rules, after which the witness knows them if nobody wrote
// meanwhile.
func (p *Program) watchRead(ctx context.Context, read func() error) error {
	before, ok1 := p.generation(ctx)
	err := read()
	after, ok2 := p.generation(ctx)
	p.witness = witness{at: after, known: ok1 && ok2 && err == nil && after == before}
	return err
}

// watchWrite writes rules, after which the witness still knows them if it did
// before and nobody else wrote.
func (p *Program) watchWrite(ctx context.Context, write func() (writes uint32, err error)) error {
	knew, before := p.untouched(ctx), p.witness.at
	writes, err := write()
	after, ok := p.generation(ctx)
	p.witness = witness{at: after, known: knew && ok && err == nil && after == before+writes}
	return err
}
