package netfiltertest

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
)

// restoring is a transaction on its way, line by line, on a copy of a table.
type restoring struct {
	kernel *Kernel
	tx     netfilter.Transaction
	table  table
	line   int
}

func (r *restoring) run() error {
	if r.table == nil {
		return r.refuse("", "table does not exist")
	}
	r.line = 1
	for _, step := range []func() error{r.declare, r.fill, r.remove, r.insert, r.delete, r.commit} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// refuse makes the error that the real tools give.
func (r *restoring) refuse(chain, format string, args ...any) error {
	lines := strings.Split(r.tx.String(), "\n")
	return &netfilter.RestoreError{
		Command: "in memory", Table: r.tx.Table, Line: r.line, Text: lines[r.line-1], Chain: chain,
		Err: errors.New("exit status 2"), Output: fmt.Sprintf(format, args...),
	}
}

// declare makes all chains that the transaction names, or empties them.
func (r *restoring) declare() error {
	names := slices.Clone(r.tx.Delete)
	for i := len(r.tx.Chains) - 1; i >= 0; i-- {
		names = slices.Insert(names, 0, r.tx.Chains[i].Name)
	}
	for _, name := range names {
		r.line++
		switch {
		case name == "" || len(name) > 28 || strings.ContainsAny(name, " \t\"'") || strings.ContainsAny(name[:1], "-!"):
			return r.refuse(name, "chain name %q is invalid", name)
		case slices.Contains(builtIn(r.tx.Table), name):
			return r.refuse(name, "chain %s is the kernel's own", name)
		}
		r.table[name] = netfilter.Chain{Name: name}
	}
	return nil
}

func (r *restoring) fill() error {
	for _, c := range r.tx.Chains {
		for _, rule := range c.Rules {
			r.line++
			if err := r.put(c.Name, 0, rule); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *restoring) insert() error {
	for _, p := range r.tx.Insert {
		r.line++
		if err := r.put(p.Chain, p.At, p.Rule); err != nil {
			return err
		}
	}
	return nil
}

func (r *restoring) put(chain string, at int, rule netfilter.Rule) error {
	c, ok := r.table[chain]
	if !ok {
		return r.refuse(chain, "No chain/target/match by that name")
	}
	if at == 0 {
		at = len(c.Rules) + 1
	}
	if at < 1 || at > len(c.Rules)+1 {
		return r.refuse(chain, "Index of insertion too big")
	}
	if err := r.check(rule); err != nil {
		return r.refuse(chain, "%v", err)
	}
	c.Rules = slices.Insert(slices.Clone(c.Rules), at-1, netfilter.ParseRule(rule.String()))
	r.table[chain] = c
	return nil
}

func (r *restoring) remove() error {
	for _, p := range r.tx.Remove {
		r.line++
		c := r.table[p.Chain]
		text := p.Rule.String()
		i := slices.IndexFunc(c.Rules, func(have netfilter.Rule) bool { return have.String() == text })
		if i < 0 {
			return r.refuse(p.Chain, "Bad rule (does a matching rule exist in that chain?)")
		}
		c.Rules = slices.Delete(slices.Clone(c.Rules), i, i+1)
		r.table[p.Chain] = c
	}
	return nil
}

func (r *restoring) delete() error {
	for _, name := range r.tx.Delete {
		r.line++
		c, ok := r.table[name]
		switch {
		case !ok:
			return r.refuse(name, "No chain/target/match by that name")
		case len(c.Rules) > 0:
			return r.refuse(name, "CHAIN_DEL failed (Device or resource busy): chain %s", name)
		}
		delete(r.table, name)
		if from := r.table.refersTo(name); from != "" {
			return r.refuse(name, "CHAIN_DEL failed (Device or resource busy): chain %s, from %s", name, from)
		}
	}
	return nil
}

// refersTo names a chain with a rule that goes to another.
func (t table) refersTo(name string) string {
	for _, c := range t {
		for i := range c.Rules {
			if goesTo(&c.Rules[i]) == name {
				return c.Name
			}
		}
	}
	return ""
}

func goesTo(r *netfilter.Rule) string {
	if k := r.Target.Kind; k == netfilter.TargetJump || k == netfilter.TargetGoto {
		return r.Target.Name
	}
	return ""
}

// commit looks for what only the whole shows: jumps to chains that are not
// there at the end, jumps in a circle, and targets that a hook does not take.
func (r *restoring) commit() error {
	for _, c := range r.table {
		for i := range c.Rules {
			if to := goesTo(&c.Rules[i]); to != "" && r.table[to].Name == "" && !isExtension(&c.Rules[i]) {
				return r.refuse(c.Name, "chain '%s' does not exist", to)
			}
		}
	}
	for _, base := range builtIn(r.tx.Table) {
		if err := r.follow(base, base, nil); err != nil {
			return err
		}
	}
	return nil
}

// isExtension says whether the target may be one that netfilter does not
// model: they come with options or are not read in full.
func isExtension(r *netfilter.Rule) bool { return r.Opaque }

func (r *restoring) follow(base, chain string, path []string) error {
	if slices.Contains(path, chain) {
		return r.refuse(base, "RULE_APPEND failed (Too many links): rule in chain %s", chain)
	}
	path = append(path, chain)
	for i := range r.table[chain].Rules {
		rule := &r.table[chain].Rules[i]
		if !hookTakes(base, rule.Target.Kind) {
			return r.refuse(base, "RULE_APPEND failed (Invalid argument): rule in chain %s", chain)
		}
		if to := goesTo(rule); to != "" && r.table[to].Name != "" {
			if err := r.follow(base, to, path); err != nil {
				return err
			}
		}
	}
	return nil
}

func hookTakes(base string, k netfilter.TargetKind) bool {
	switch k {
	case netfilter.TargetMasquerade:
		return base == "POSTROUTING"
	case netfilter.TargetSNAT:
		return base == "POSTROUTING" || base == "INPUT"
	case netfilter.TargetDNAT, netfilter.TargetRedirect:
		return base == "PREROUTING" || base == "OUTPUT"
	}
	return true
}

// check finds what is wrong with a rule by itself.
func (r *restoring) check(rule netfilter.Rule) error {
	if rule.Opaque {
		return nil
	}
	for _, a := range []netip.Addr{rule.Source.Addr, rule.Destination.Addr, rule.Target.To.Addr()} {
		if a.IsValid() && dataplane.FamilyOf(a) != r.kernel.family {
			return fmt.Errorf("host/network `%s' not found", a)
		}
	}
	hasPorts := rule.SourcePort.Last != 0 || rule.DestPort.Last != 0
	if hasPorts && (rule.Protocol.Not || !rule.Protocol.Number.HasPorts()) {
		return errors.New(`unknown option "--dport"`)
	}
	if len(rule.In.Name) > 15 || len(rule.Out.Name) > 15 {
		return errors.New("interface name must be shorter than IFNAMSIZ (15)")
	}
	if err := r.checkSets(rule); err != nil {
		return err
	}
	return r.checkTarget(rule)
}

func (r *restoring) checkSets(rule netfilter.Rule) error {
	for _, name := range rule.SetNames() {
		if _, ok := r.kernel.sets[name]; !ok {
			return fmt.Errorf("set %s doesn't exist", name)
		}
	}
	return nil
}

func (r *restoring) checkTarget(rule netfilter.Rule) error {
	k, t := rule.Target.Kind, r.tx.Table
	ported := rule.Protocol.Number.HasPorts() && !rule.Protocol.Not
	switch k {
	case netfilter.TargetReject:
		if t != netfilter.Filter || rule.Target.Name == netfilter.TCPReset && rule.Protocol != netfilter.Is(dataplane.TCP) {
			return errors.New("invalid argument")
		}
	case netfilter.TargetDNAT, netfilter.TargetSNAT, netfilter.TargetRedirect:
		if t != netfilter.NAT || rule.Target.To.Port() != 0 && !ported {
			return errors.New("need TCP, UDP, SCTP or DCCP with port specification")
		}
	case netfilter.TargetMasquerade:
		if t != netfilter.NAT {
			return errors.New("invalid argument")
		}
	case netfilter.TargetMapMark:
		if t != netfilter.Mangle {
			return errors.New("--map-set only usable from mangle table")
		}
	case netfilter.TargetDrop:
		if t == netfilter.NAT {
			return errors.New(`the "nat" table is not intended for filtering`)
		}
	}
	return nil
}
