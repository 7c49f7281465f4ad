package netfilter

import "net/netip"

// Balanced is what IPVS makes of a new flow.
type Balanced struct {
	// Place names the virtual server, for a step.
	Place string
	// Choices are where the flow may go; none: it is refused.
	Choices []Choice
}

// Choice is a real server, with its share of new flows from 0 to 1.
type Choice struct {
	To     netip.AddrPort
	Share  float64
	Detail string // for a step
}

// balance shows packets to IPVS, which looks at INPUT behind the filter table
// and at OUTPUT behind the nat table, long before the filter table there. It
// returns those that stay on their way, among them those that are for this node
// still, and those that IPVS sends from here.
func (w *walk) balance(list []Outcome) (stay, relayed []Outcome) {
	if w.Balance == nil {
		return list, nil
	}
	for _, o := range list {
		b, ok := Balanced{}, false
		if o.Verdict == Accepted && o.Packet.States&StateNew != 0 {
			b, ok = w.Balance(o.Packet)
		}
		switch {
		case !ok:
			stay = append(stay, o)
		case len(b.Choices) == 0:
			o.Verdict = Rejected
			o.pass(Step{Place: b.Place, Text: "no real server takes new flows"})
			stay = append(stay, o)
		default:
			if w.ways -= len(b.Choices); w.tangled() {
				return nil, nil
			}
			local, remote := split(w.route(b.chosen(o)))
			stay, relayed = append(stay, local...), append(relayed, remote...)
		}
	}
	return stay, relayed
}

// chosen are the ends of a packet's choice.
func (b Balanced) chosen(o Outcome) []Outcome {
	all := make([]Outcome, len(b.Choices))
	for i, c := range b.Choices {
		next := o
		next.Probability *= c.Share
		next.Balanced = true
		if !next.Packet.OrigDst.IsValid() {
			next.Packet.OrigDst = o.Packet.Destination
		}
		next.Packet.Destination = c.To
		next.pass(Step{Place: b.Place, Text: c.Detail})
		all[i] = next
	}
	return all
}

// resend takes what IPVS sends through OUTPUT, once more if it came from
// there; the nat table has seen the flow.
func (w *walk) resend(list []Outcome) []Outcome {
	return w.through(list, hooks("OUTPUT", Raw, Mangle, Filter))
}
