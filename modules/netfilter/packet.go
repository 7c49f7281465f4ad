package netfilter

import (
	"fmt"
	"net/netip"

	"github.com/portway/portway/modules/dataplane"
)

// Packet is the first packet of a flow at some place on its way.
type Packet struct {
	Source      netip.AddrPort
	Destination netip.AddrPort
	Protocol    dataplane.Protocol
	// In is the device through which the packet came; empty for a packet
	// that this node sends. Out is set after routing.
	In, Out string
	Mark    uint32
	// States is what connection tracking says of the flow. Zero is NEW. The
	// nat tables see only packets in state NEW.
	States StateSet
	// OrigDst is the destination before DNAT, set by the walk.
	OrigDst netip.AddrPort

	// written is what the packet has changed on its way.
	written *written
}

// PacketOf is the first packet of a flow.
func PacketOf(f dataplane.Flow) Packet {
	return Packet{Source: f.Src, Destination: f.Dst, Protocol: f.Protocol, In: f.InInterface, States: StateNew}
}

// Verdict is what became of a packet.
type Verdict uint8

// A packet is accepted if it left the last hook, to the network or to a
// socket of this node.
const (
	Accepted Verdict = iota
	Dropped
	Rejected
)

// Step is a rule that a packet met, or what stands in Place.
type Step struct {
	Place  string
	Table  Table
	Chain  string
	Number int // from 1; zero is the chain's policy
	Text   string
	// Note says what the text does not, such as that the rule is not
	// understood and was passed over.
	Note string
}

// Object names the step as an operator would look for it.
func (s Step) Object() string {
	switch {
	case s.Place != "":
		return s.Place
	case s.Number == 0:
		return fmt.Sprintf("%s chain %s policy", s.Table, s.Chain)
	}
	return fmt.Sprintf("%s chain %s rule %d", s.Table, s.Chain, s.Number)
}

// String is the step in a line.
func (s Step) String() string {
	line := s.Object() + ": " + s.Text
	if s.Note != "" {
		line += " (" + s.Note + ")"
	}
	return line
}

// Outcome is one end that a packet may come to.
type Outcome struct {
	// Packet as it was when it came to its end.
	Packet  Packet
	Verdict Verdict
	// Local says that the packet reached a socket of this node.
	Local bool
	// Balanced says that IPVS chose the destination.
	Balanced bool
	// Probability is the product of what the statistic matches on the way
	// said, from 0 to 1.
	Probability float64
	Steps       []Step
}

// Translated says whether the destination was changed.
func (o *Outcome) Translated() bool { return o.Packet.States&StateDNAT != 0 }

// Masqueraded says whether the source was changed.
func (o *Outcome) Masqueraded() bool { return o.Packet.States&StateSNAT != 0 }

// Explain tells the outcome in the words of the contract: Forward if the flow
// was sent to another destination or balanced, NotOurs if it was left alone.
func (o *Outcome) Explain() dataplane.Outcome {
	e := dataplane.Outcome{Action: dataplane.NotOurs, Probability: o.Probability}
	switch {
	case o.Verdict == Rejected:
		e.Action = dataplane.Reject
	case o.Verdict == Dropped:
		e.Action = dataplane.Drop
	case o.Translated(), o.Balanced:
		e.Action = dataplane.Forward
		e.Endpoint = o.Packet.Destination
		e.Masqueraded = o.Masqueraded()
	}
	for _, s := range o.Steps {
		detail := s.Text
		if s.Note != "" {
			detail += " (" + s.Note + ")"
		}
		e.Steps = append(e.Steps, dataplane.Step{Object: s.Object(), Detail: detail})
	}
	return e
}
