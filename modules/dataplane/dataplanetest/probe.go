package dataplanetest

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

// Probe is a line of a scenario: who sends what where, and what must come of it.
//
//	c TCP 10.96.0.10:80 to e1,e2 from c
//	c TCP 10.96.0.10:80 sticks to e1,e2
//	up UDP 192.168.77.10:30053 silent
//	node TCP [fd00:96::10]:81 refused
//	c:5000 UDP 10.96.0.10:53 to e1
//	c ICMP 10.96.0.10:0 refused
//
// "to" wants each of the hosts to be reached by some of many flows and no other;
// "sticks to" wants all flows at one of them, and at the same one as in the
// states before, as long as it is listed. "from" wants the endpoint to see an
// address of that host. A source port makes it the same flow in every state.
type Probe struct {
	From       string
	SourcePort uint16
	Protocol   dataplane.Protocol
	To         netip.AddrPort
	// Outcome is what must come of it.
	Outcome rig.Outcome
	// Servers are the hosts that must answer.
	Servers []string
	Sticks  bool
	// Source is whose address they must see; "" is anybody's.
	Source string
}

// String writes the probe as a scenario has it.
func (p Probe) String() string {
	var b strings.Builder
	b.WriteString(p.From)
	if p.SourcePort != 0 {
		fmt.Fprintf(&b, ":%d", p.SourcePort)
	}
	fmt.Fprintf(&b, " %s %s", p.Protocol, p.To)
	if p.Outcome != rig.Answered {
		return b.String() + " " + string(p.Outcome)
	}
	if p.Sticks {
		b.WriteString(" sticks")
	}
	b.WriteString(" to " + strings.Join(p.Servers, ","))
	if p.Source != "" {
		b.WriteString(" from " + p.Source)
	}
	return b.String()
}

// ParseProbe reads what Probe.String writes.
func ParseProbe(line string) (p Probe, err error) {
	words := strings.Fields(line)
	if len(words) < 4 {
		return p, errors.New("want who sends, protocol, destination and what comes of it")
	}
	if err := p.parseSender(words[0]); err != nil {
		return p, err
	}
	if p.Protocol, err = dataplane.ParseProtocol(words[1]); err != nil {
		return p, err
	}
	if p.To, err = netip.ParseAddrPort(words[2]); err != nil {
		return p, err
	}
	return p, p.parseOutcome(words[3:])
}

func (p *Probe) parseSender(word string) (err error) {
	host, port, fixed := strings.Cut(word, ":")
	if fixed {
		if p.SourcePort, err = parsePort(port); err != nil {
			return err
		}
	}
	p.From = host
	return checkHost(host)
}

func (p *Probe) parseOutcome(words []string) error {
	if len(words) == 1 {
		var err error
		p.Outcome, err = oneOf(words[0], rig.Refused, rig.Silent)
		return err
	}
	p.Outcome = rig.Answered
	if words[0] == "sticks" {
		p.Sticks, words = true, words[1:]
	}
	if len(words) != 2 && len(words) != 4 || words[0] != "to" {
		return fmt.Errorf("%q is not of the form: to HOST,HOST from HOST", strings.Join(words, " "))
	}
	p.Servers = strings.Split(words[1], ",")
	if len(words) == 4 {
		if words[2] != "from" {
			return fmt.Errorf("%q: want from", words[2])
		}
		p.Source = words[3]
	}
	for _, host := range append(slices.Clone(p.Servers), p.From) {
		if err := checkHost(host); err != nil {
			return err
		}
	}
	return nil
}

func checkHost(name string) error {
	_, _, err := rig.Addrs(name)
	return err
}

// agrees compares what a scenario expects with what the snapshot says, so that
// the two are proofs of each other.
func (p Probe) agrees(v dataplane.Verdict) error {
	var ok bool
	switch p.Outcome {
	case rig.Refused:
		ok = v.Action == dataplane.Reject || v.Action == dataplane.NotOurs
	case rig.Silent:
		ok = v.Action == dataplane.Drop || v.Action == dataplane.NotOurs
	default:
		ok = v.Action == dataplane.NotOurs || v.Action == dataplane.Forward && p.agreesOnPool(v.Pool)
	}
	if !ok {
		return fmt.Errorf("the scenario expects something else of the flow than the snapshot, which says %s", v)
	}
	return nil
}

// agreesOnPool wants the pool's hosts, unless the flow has a memory.
func (p Probe) agreesOnPool(pool *dataplane.Pool) bool {
	if p.SourcePort != 0 {
		return true
	}
	var hosts []string
	for _, e := range pool.Endpoints {
		name, _ := hostOf(e.Addr.Addr())
		hosts = append(hosts, name)
	}
	return slices.Equal(slices.Sorted(slices.Values(hosts)), slices.Sorted(slices.Values(p.Servers)))
}
