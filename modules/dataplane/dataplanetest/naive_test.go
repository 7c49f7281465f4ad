package dataplanetest

import (
	"context"
	"fmt"
	"hash/fnv"
	"net/netip"
	"os/exec"
	"slices"
	"strings"

	"github.com/portway/portway/modules/dataplane"
)

// naive is the simplest plane that obeys the laws: it writes all rules anew
// whenever any of them changes. Its faults can be chosen, to see that a law
// finds them.
type naive struct {
	family dataplane.Family
	node   Config // which back end
	fault  string
	fail   func() error
	want   *dataplane.Snapshot
	rules  string // as written
	saved  string // as read back
}

func naiveMode(node Config, fault string) dataplane.Mode {
	return dataplane.Mode{
		Name:  "naive",
		Probe: func(context.Context, dataplane.Family) error { return nil },
		Open:  openNaive(node, fault, func() error { return nil }),
		Cleanup: func(ctx context.Context, f dataplane.Family) error {
			if fault == "leaves its chains" {
				return nil
			}
			p := naive{family: f, node: node, fail: func() error { return nil }}
			return p.cleanup(ctx)
		},
	}
}

func openNaive(node Config, fault string, fail func() error) Open {
	return func(_ context.Context, f dataplane.Family) (dataplane.Plane, error) {
		return &naive{family: f, node: node, fault: fault, fail: fail}, nil
	}
}

func (p *naive) Close() error { return nil }

func (p *naive) Sync(ctx context.Context, r dataplane.SyncRequest) (dataplane.Report, error) {
	rules := p.render(r.Want)
	saved, err := p.save(ctx)
	if err != nil {
		return dataplane.Report{}, err
	}
	report := dataplane.Report{Writes: 1, Full: true}
	if rules == p.rules && saved != p.saved {
		report.Repaired = []dataplane.Difference{{Object: "all rules", Want: p.saved, Have: saved}}
	}
	if rules == p.rules && (report.Repaired == nil || p.fault == "repairs nothing") && p.fault != "writes always" {
		p.want = r.Want
		return dataplane.Report{}, nil
	}
	if p.fault == "trusts failed writes" {
		p.want, p.rules, p.saved = r.Want, rules, saved
	}
	if err := p.fail(); err != nil {
		return dataplane.Report{}, fmt.Errorf("write rules: %w", err)
	}
	if err := p.restore(ctx, withJumps(rules, saved)); err != nil {
		return dataplane.Report{}, err
	}
	saved, err = p.save(ctx)
	p.want, p.rules, p.saved = r.Want, rules, saved
	return report, err
}

func (p *naive) Audit(ctx context.Context, want *dataplane.Snapshot) ([]dataplane.Difference, error) {
	saved, err := p.save(ctx)
	if (p.render(want) != p.rules || saved != p.saved) && p.fault != "audits blindly" {
		return []dataplane.Difference{{Object: "all rules", Want: p.saved, Have: saved}}, err
	}
	return nil, err
}

// Explain believes that the rules are right, unless it is to be wrong.
func (p *naive) Explain(_ context.Context, f dataplane.Flow) (dataplane.Explanation, error) {
	v := p.want.Decide(f)
	if p.fault == "explains wrongly" && v.Action == dataplane.Reject {
		v.Action = dataplane.Drop
	}
	if v.Pool == nil {
		return dataplane.Explanation{Outcomes: []dataplane.Outcome{{Action: v.Action}}}, nil
	}
	var e dataplane.Explanation
	for _, ep := range v.Pool.Endpoints {
		e.Outcomes = append(e.Outcomes, dataplane.Outcome{
			Action: v.Action, Endpoint: ep.Addr, Masqueraded: v.MasqueradeTo(ep) == dataplane.MasqueradeYes,
		})
	}
	return e, nil
}

const (
	chains = ":T-PRE - [0:0]\n:T-OUT - [0:0]\n:T-POST - [0:0]\n"
	mark   = "-j MARK --set-xmark 0x4000/0x4000"
)

// jumpRules are the only rules in the chains of others.
var jumpRules = [][2]string{
	{"nat", "PREROUTING -j T-PRE"},
	{"nat", "OUTPUT -j T-OUT"},
	{"nat", "POSTROUTING -j T-POST"},
	{"mangle", "PREROUTING -j T-PRE"},
	{"mangle", "OUTPUT -j T-OUT"},
	{"filter", "INPUT -m conntrack --ctstate NEW -j T-PRE"},
	{"filter", "FORWARD -j T-POST"},
	{"filter", "OUTPUT -m conntrack --ctstate NEW -j T-OUT"},
}

// withJumps puts the jumps in front that are not, in the same transactions: to
// make the chains beforehand would empty them.
func withJumps(rules, saved string) string {
	for _, j := range jumpRules {
		move := "-I " + j[1] + "\n"
		switch there, first := hasJump(saved, j); {
		case first:
			continue
		case there:
			move = "-D " + j[1] + "\n" + move
		}
		rules = strings.Replace(rules, "*"+j[0]+"\n"+chains, "*"+j[0]+"\n"+chains+move, 1)
	}
	return rules
}

// hasJump looks into the jump's own table, and whether it is the first rule of
// its chain.
func hasJump(saved string, jump [2]string) (there, first bool) {
	_, table, _ := strings.Cut(saved, "*"+jump[0]+"\n")
	table, _, _ = strings.Cut(table, "COMMIT\n")
	chain, _, _ := strings.Cut(jump[1], " ")
	at, start := strings.Index(table, "-A "+jump[1]+"\n"), strings.Index(table, "-A "+chain+" ")
	return at >= 0, at >= 0 && at == start
}

func (p *naive) cleanup(ctx context.Context) error {
	saved, err := p.save(ctx)
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, t := range []string{"nat", "mangle", "filter"} {
		fmt.Fprintf(&b, "*%s\n", t)
		for _, j := range jumpRules {
			if there, _ := hasJump(saved, j); j[0] == t && there {
				fmt.Fprintf(&b, "-D %s\n", j[1])
			}
		}
		if strings.Contains(saved, "T-PRE") {
			b.WriteString("-F T-PRE\n-F T-OUT\n-F T-POST\n-X T-PRE\n-X T-OUT\n-X T-POST\n")
		}
		b.WriteString("COMMIT\n")
	}
	return p.restore(ctx, b.String())
}

// render writes the rules of a snapshot.
func (p *naive) render(want *dataplane.Snapshot) string {
	r := rules{want: want, naive: p}
	for sp := range want.ServicePorts() {
		for _, f := range sp.Frontends {
			if f.Family == p.family {
				r.addFrontend(sp, f)
			}
		}
	}
	r.addUnclaimed()
	r.openForward()
	fmt.Fprintf(&r.nat, "-A T-POST -m mark --mark 0x4000/0x4000 -j MASQUERADE --random-fully\n")
	if r.fault == "takes all chains" {
		r.filter.WriteString("-F KUBE-FIREWALL\n")
	}
	flush := "-F T-PRE\n-F T-OUT\n-F T-POST\n"
	return fmt.Sprintf("*mangle\n%[1]s%[2]sCOMMIT\n*nat\n%[1]s%[3]sCOMMIT\n*filter\n%[1]s%[4]s%[5]sCOMMIT\n",
		chains+flush, r.mangle.String(), r.exact.String()+r.nodePorts.String()+r.nat.String(), r.filter.String()+r.filterNodePorts.String(), r.filterLast.String())
}

type rules struct {
	*naive
	want                                *dataplane.Snapshot
	mangle, exact, nodePorts, nat       strings.Builder
	filter, filterNodePorts, filterLast strings.Builder
}

// origins are the matches of the origins, in the order in which they are tried.
func (r *rules) origins() []struct {
	origin       dataplane.Origin
	chain, match string
} {
	type o = struct {
		origin       dataplane.Origin
		chain, match string
	}
	all := []o{{dataplane.FromNode, "T-OUT", ""}}
	if d, ok := r.want.Node().Detector(r.family); ok {
		match := "-i " + d.Interface
		switch {
		case d.Prefix.IsValid():
			match = "-s " + d.Prefix.String()
		case d.IsPrefix:
			match += "+"
		}
		all = append(all, o{dataplane.FromPod, "T-PRE", match})
	}
	return append(all, o{dataplane.FromOutside, "T-PRE", ""})
}

func (r *rules) addFrontend(sp *dataplane.ServicePort, f *dataplane.Frontend) {
	proto := strings.ToLower(sp.Name.Protocol.String())
	for _, dst := range r.addrs(f) {
		to := fmt.Sprintf("-d %s -p %s -m %s --dport %d", dst, proto, proto, f.Port)
		if f.Sources != nil && r.fault != "ignores source ranges" {
			r.addSources(to, f.Sources)
		}
		for _, o := range r.origins() {
			r.addRoute(o.chain, strings.TrimSpace(o.match+" "+to), sp, f, f.Routes[o.origin])
		}
	}
}

func (r *rules) addrs(f *dataplane.Frontend) []netip.Addr {
	if f.Kind != dataplane.NodePort {
		return []netip.Addr{f.Addr}
	}
	return slices.DeleteFunc(slices.Clone(r.want.Node().NodePortAddrs), func(a netip.Addr) bool {
		return dataplane.FamilyOf(a) != r.family
	})
}

// addSources drops what is not listed before anything else sees it.
func (r *rules) addSources(to string, s *dataplane.SourceRanges) {
	for _, p := range s.Prefixes {
		fmt.Fprintf(&r.mangle, "-A T-PRE %s -s %s -j MARK --set-xmark 0x20000/0x20000\n", to, p)
	}
	fmt.Fprintf(&r.mangle, "-A T-PRE %s -m mark ! --mark 0x20000/0x20000 -j DROP\n", to)
	if !s.Node {
		fmt.Fprintf(&r.mangle, "-A T-OUT %s -j DROP\n", to)
	}
}

func (r *rules) addRoute(chain, match string, sp *dataplane.ServicePort, f *dataplane.Frontend, route dataplane.Route) {
	nat, filter := &r.exact, &r.filter
	if f.Kind == dataplane.NodePort {
		nat, filter = &r.nodePorts, &r.filterNodePorts
	}
	switch route.Action {
	case dataplane.Reject:
		fmt.Fprintf(nat, "-A %s %s -j ACCEPT\n", chain, match)
		writeReject(filter, chain, match)
	case dataplane.Drop:
		action := "DROP"
		if r.fault == "rejects what to drop" {
			action = "REJECT"
		}
		fmt.Fprintf(nat, "-A %s %s -j ACCEPT\n", chain, match)
		fmt.Fprintf(filter, "-A %s %s -j %s\n", chain, match, action)
	default:
		r.addForward(nat, chain, match, sp, route)
	}
}

// writeReject resets TCP: with an ICMPv6 error a client learns of it only when
// it sends its second SYN.
func writeReject(b *strings.Builder, chain, match string) {
	fmt.Fprintf(b, "-A %s %s -j REJECT", chain, match)
	if strings.Contains(match, "-p tcp") {
		b.WriteString(" --reject-with tcp-reset")
	}
	b.WriteByte('\n')
}

func (r *rules) addForward(nat *strings.Builder, chain, match string, sp *dataplane.ServicePort, route dataplane.Route) {
	switch route.Masquerade {
	case dataplane.MasqueradeYes, dataplane.MasqueradeEither:
		if r.fault != "forgets to masquerade" {
			fmt.Fprintf(nat, "-A %s %s %s\n", chain, match, mark)
		}
	case dataplane.MasqueradeRemote:
		r.markRemote(nat, chain, match)
	case dataplane.MasqueradeNo:
		if r.fault == "masquerades too much" {
			fmt.Fprintf(nat, "-A %s %s %s\n", chain, match, mark)
		}
	}
	left := 0
	for _, e := range route.Pool.Endpoints {
		left += int(e.Weight)
		if sp.Affinity > 0 {
			fmt.Fprintf(nat, "-A %s %s -m recent --name %s --rcheck --seconds %d -j DNAT --to-destination %s\n",
				chain, match, memory(sp, route.Pool, e), int(sp.Affinity.Seconds()), e.Addr)
		}
	}
	for _, e := range route.Pool.Endpoints {
		remember := ""
		if sp.Affinity > 0 && r.fault != "forgets affinity" {
			remember = " -m recent --set --name " + memory(sp, route.Pool, e)
		}
		fmt.Fprintf(nat, "-A %s %s -m statistic --mode random --probability %.11f%s -j DNAT --to-destination %s\n",
			chain, match, float64(e.Weight)/float64(left), remember, e.Addr)
		left -= int(e.Weight)
		if hairpin := e.Addr.Addr(); r.fault != "forgets hairpins" {
			fmt.Fprintf(&r.nat, "-A T-POST -s %[1]s -d %[1]s -m conntrack --ctstate DNAT -j MASQUERADE\n", hairpin)
		}
	}
}

// memory names the list of an endpoint's clients.
func memory(sp *dataplane.ServicePort, p *dataplane.Pool, e dataplane.Endpoint) string {
	h := fnv.New64a()
	fmt.Fprint(h, sp.Name, p.Scope, e.Addr)
	return fmt.Sprintf("T%x", h.Sum64())
}

// markRemote masquerades pods of other nodes, which only a source can tell.
func (r *rules) markRemote(nat *strings.Builder, chain, match string) {
	d, _ := r.want.Node().Detector(r.family)
	if !d.Prefix.IsValid() {
		return
	}
	fmt.Fprintf(nat, "-A %s %s %s\n", chain, match, mark)
	for _, p := range r.want.Node().PodCIDRs {
		if dataplane.FamilyOf(p.Addr()) == r.family {
			here := strings.Replace(match, d.Prefix.String(), p.String(), 1)
			fmt.Fprintf(nat, "-A %s %s -j MARK --set-xmark 0x0/0x4000\n", chain, here)
		}
	}
}

// addUnclaimed closes what no Service port has.
func (r *rules) addUnclaimed() {
	for ip := range r.want.ClusterIPs() {
		if dataplane.FamilyOf(ip) == r.family && !r.want.Node().Holds(ip) {
			for _, chain := range []string{"T-PRE", "T-OUT"} {
				writeReject(&r.filterLast, chain, fmt.Sprintf("-d %s -p tcp", ip))
				writeReject(&r.filterLast, chain, "-d "+ip.String())
			}
		}
	}
}

// openForward lets through what is masqueraded, and nothing that conntrack calls
// invalid.
func (r *rules) openForward() {
	if r.fault != "forwards invalid packets" {
		r.filterLast.WriteString("-A T-POST -m conntrack --ctstate INVALID -j DROP\n")
	}
	r.filterLast.WriteString("-A T-POST -m mark --mark 0x4000/0x4000 -j ACCEPT\n-A T-POST -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n-A T-POST -m conntrack --ctstate NEW -j T-PRE\n")
}

func (p *naive) restore(ctx context.Context, text string) error {
	cmd := exec.CommandContext(ctx, p.node.tool(p.family, "-restore"), "--noflush")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s\n%s", err, out, text)
	}
	return nil
}

func (p *naive) save(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, p.node.tool(p.family, "-save")).Output()
	return volatile.ReplaceAllString(string(out), ""), err
}
