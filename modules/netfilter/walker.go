package netfilter

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// Walker follows packets through rules and sets that were read before. It is
// a pure function of its fields, which it never changes.
type Walker struct {
	Rules Ruleset
	Sets  map[string]Set
	// IsLocal says whether this node has an address, on whatever device.
	IsLocal func(netip.Addr) bool
	// OutInterface says through which device an address is reached. If it is
	// nil, rules that ask are noted and passed over.
	OutInterface func(netip.Addr) string
	// MasqueradeAs says which source the node gives a packet. If it is nil
	// the source stays, for rules that come after.
	MasqueradeAs func(Packet) netip.Addr
	// Balance is IPVS: what its virtual servers make of a packet; false if the
	// packet is for none of them. Nil: there are none.
	Balance func(Packet) (Balanced, bool)
	// Forget is the prefix of the names of sets that are taken for empty: a
	// new client, of which affinity remembers nothing.
	Forget string
}

// ReadWalker reads all tables and sets of a kernel.
func ReadWalker(ctx context.Context, k Kernel) (*Walker, error) {
	w := &Walker{Rules: make(Ruleset), Sets: make(map[string]Set)}
	err := k.Save(ctx, Tables(), func(t Table, c Chain) error {
		w.Rules.add(t, c)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading the rules: %w", err)
	}
	sets, err := k.Sets(ctx, nil)
	if err != nil {
		return nil, err
	}
	for _, s := range sets {
		w.Sets[s.Name] = s
	}
	return w, nil
}

// Hook is a place where a table looks at packets: one of its own chains.
type Hook struct {
	Table Table
	Chain string
}

// hooks lists what happens in one place, in the kernel's order of priorities.
func hooks(chain string, tables ...Table) []Hook {
	list := make([]Hook, len(tables))
	for i, t := range tables {
		list[i] = Hook{t, chain}
	}
	return list
}

// ErrTangled says that the ways of a packet are too many to follow: rules that
// jump twice to chains that do so again double them each time.
var ErrTangled = errors.New("the ways of a packet through these rules are too many to follow")

// A packet that may go to each of 10,000 endpoints, past a list of 1,000 rules
// each time, is within these limits.
const (
	// maxVisits of packets to rules. A step that a packet takes along when it is
	// recorded counts for one, because it is copied.
	maxVisits = 1 << 24
	maxWays   = 1 << 17
)

// walk is the way of one packet, with what is left of the limits.
type walk struct {
	*Walker
	visits, ways int
}

// tangled tells whether a limit was exceeded. What is not followed from then on
// is missing from all lists.
func (w *walk) tangled() bool { return w.visits < 0 || w.ways < 0 }

// Follow takes a packet all the way through the node, to the network or to a
// socket. The only error is [ErrTangled].
func (w *Walker) Follow(p Packet) ([]Outcome, error) {
	if p.States == 0 {
		p.States = StateNew
	}
	start := []Outcome{{Packet: p, Probability: 1}}
	if p.In == "" {
		return w.walk(func(w *walk) []Outcome { return w.send(start) })
	}
	return w.walk(func(w *walk) []Outcome { return w.receive(start) })
}

func (w *Walker) walk(follow func(*walk) []Outcome) ([]Outcome, error) {
	one := &walk{w, maxVisits, maxWays}
	all := follow(one)
	if one.tangled() {
		return nil, ErrTangled
	}
	return all, nil
}

// receive follows what comes in by a device.
func (w *walk) receive(start []Outcome) []Outcome {
	list := w.through(start, hooks("PREROUTING", Raw, Mangle, NAT))
	local, remote := split(w.route(list))
	local = w.through(local, hooks("INPUT", Mangle, Filter))
	local, relayed := w.balance(local)
	local = w.through(local, hooks("INPUT", NAT))
	remote = w.through(remote, hooks("FORWARD", Mangle, Filter))
	remote = append(remote, w.resend(relayed)...)
	remote = w.through(remote, hooks("POSTROUTING", Mangle, NAT))
	return append(local, remote...)
}

// send follows what the node itself sends. What it sends to itself comes in
// again through the loopback device, where translation is over already.
func (w *walk) send(list []Outcome) []Outcome {
	list = w.through(list, hooks("OUTPUT", Raw, Mangle, NAT))
	list, relayed := w.balance(list)
	list = w.through(list, hooks("OUTPUT", Filter))
	list = append(list, w.resend(relayed)...)
	list = w.through(w.route(list), hooks("POSTROUTING", Mangle, NAT))
	local, remote := split(list)
	for i := range local {
		local[i].Packet.In = loopback
	}
	local = w.through(local, hooks("PREROUTING", Raw, Mangle))
	local = w.through(local, hooks("INPUT", Mangle, Filter))
	return append(local, remote...)
}

const loopback = "lo"

// Through takes a packet through the given hooks only, without routing.
func (w *Walker) Through(p Packet, hooks ...Hook) ([]Outcome, error) {
	return w.walk(func(w *walk) []Outcome { return w.through([]Outcome{{Packet: p, Probability: 1}}, hooks) })
}

// through takes what is still on its way through hooks.
func (w *walk) through(list []Outcome, hooks []Hook) []Outcome {
	for _, h := range hooks {
		var next []Outcome
		for _, o := range list {
			if o.Verdict != Accepted || h.Table == NAT && o.Packet.States&StateNew == 0 {
				next = append(next, o)
			} else {
				next = append(next, w.hook(h, o)...)
			}
		}
		list = next
	}
	return list
}

// route decides between this node and others, after the destination is final.
func (w *Walker) route(list []Outcome) []Outcome {
	for i := range list {
		o := &list[i]
		to := o.Packet.Destination.Addr()
		o.Local = w.isLocal(to)
		switch {
		case o.Local && o.Packet.In == "":
			o.Packet.Out = loopback
		case !o.Local && w.OutInterface != nil:
			o.Packet.Out = w.OutInterface(to)
		}
	}
	return list
}

func (w *Walker) isLocal(a netip.Addr) bool {
	return a.IsUnspecified() || a.IsLoopback() || w.IsLocal != nil && w.IsLocal(a)
}

func split(list []Outcome) (local, remote []Outcome) {
	for _, o := range list {
		if o.Local {
			local = append(local, o)
		} else {
			remote = append(remote, o)
		}
	}
	return local, remote
}

// forgets says whether the walk takes a set for empty.
func (w *Walker) forgets(set string) bool {
	return w.Forget != "" && strings.HasPrefix(set, w.Forget)
}
