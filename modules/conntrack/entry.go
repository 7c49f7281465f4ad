package conntrack

import (
	"fmt"
	"net/netip"

	"github.com/portway/portway/modules/dataplane"
)

// Tuple is one direction of a flow.
type Tuple struct{ Src, Dst netip.AddrPort }

// Entry is one flow that the kernel remembers.
type Entry struct {
	Protocol dataplane.Protocol
	// Zone and ReplyZone are the conntrack zones of the two directions, 0 unless
	// a rule of somebody assigned another. They are part of the entry's identity.
	Zone, ReplyZone uint16
	// ID is the kernel's number, made of the original tuple and of where the
	// entry lies in memory.
	ID uint32
	// Orig is what the client sent, before any translation.
	Orig Tuple
	// Reply is what answers must look like: its source is where the flow goes.
	Reply Tuple
}

// Translated tells whether the flow goes elsewhere than where its client sent
// it.
func (e Entry) Translated() bool { return e.Reply.Src != e.Orig.Dst }

// String returns the entry in a line.
func (e Entry) String() string {
	return fmt.Sprintf("%s %s -> %s, answered by %s -> %s, zone %d",
		e.Protocol, e.Orig.Src, e.Orig.Dst, e.Reply.Src, e.Reply.Dst, e.Zone)
}
