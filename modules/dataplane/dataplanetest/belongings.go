package dataplanetest

import (
	"strconv"
	"strings"

	"github.com/portway/portway/modules/dataplane"
)

// belongings are the things of one family in a node's kernel that can be taken
// away one by one, as the tools print them.
type belongings struct{ rules, entries, addresses, routes []string }

func (b *bed) belongings(f dataplane.Family) belongings {
	b.t.Helper()
	return belongings{b.mustRules(f), b.mustEntries(f), b.mustAddresses(f), b.mustRoutes(f)}
}

func (b *bed) mustLines(argv ...string) []string {
	b.t.Helper()
	out, err := b.rig.Node.Run(b.t.Context(), argv...)
	if err != nil {
		b.t.Fatalf("%v", err)
	}
	return strings.Split(strings.TrimSpace(out), "\n")
}

// mustRules lists the iptables rules, each after its table's name.
func (b *bed) mustRules(f dataplane.Family) (rules []string) {
	b.t.Helper()
	table := ""
	for _, line := range b.mustLines(b.cfg.tool(f, "-save")) {
		switch line = strings.TrimSpace(line); {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
		case strings.HasPrefix(line, "-A "):
			rules = append(rules, table+" "+line)
		}
	}
	return rules
}

// mustEntries lists the entries of sets but those that expire: packets make
// them. A set of ports has no family, and counts as one of IPv4.
func (b *bed) mustEntries(f dataplane.Family) (entries []string) {
	b.t.Helper()
	fixed := false
	for _, line := range b.mustLines("ipset", "save") {
		switch {
		case strings.HasPrefix(line, "create "):
			is6 := strings.Contains(line, " family inet6")
			fixed = !strings.Contains(line, " timeout ") && is6 == (f == dataplane.IPv6)
		case fixed && strings.HasPrefix(line, "add "):
			entries = append(entries, strings.Join(strings.Fields(line)[1:3], " "))
		}
	}
	return entries
}

// mustAddresses lists addresses as "ip addr del" takes them.
func (b *bed) mustAddresses(f dataplane.Family) (addresses []string) {
	b.t.Helper()
	for _, line := range b.mustLines("ip", ipFlag(f), "-o", "addr") {
		if words := strings.Fields(line); len(words) > 3 && !strings.Contains(line, "scope link") {
			addresses = append(addresses, words[3]+" dev "+words[1])
		}
	}
	return addresses
}

// mustRoutes lists routes but those that the kernel makes for an address.
func (b *bed) mustRoutes(f dataplane.Family) (routes []string) {
	b.t.Helper()
	for _, line := range b.mustLines("ip", ipFlag(f), "route", "show", "table", "all") {
		if line = strings.TrimSpace(line); !strings.Contains(line, "proto kernel") {
			routes = append(routes, line)
		}
	}
	return routes
}

func ipFlag(f dataplane.Family) string { return ofFamily(f, "-4", "-6") }

// pick chooses one of the things that were not there before.
func (t *thief) pick(now, before []string) string {
	ours := onlyIn(strings.Join(now, "\n"), strings.Join(before, "\n"))
	if len(ours) == 0 {
		return ""
	}
	return ours[t.dice.IntN(len(ours))]
}

// takeRule deletes a rule by its number: the tools do not find every rule that
// they have printed.
func (t *thief) takeRule(f dataplane.Family) string {
	t.t.Helper()
	all := t.mustRules(f)
	rule := t.pick(all, t.before[f].rules)
	if rule == "" {
		return ""
	}
	words := strings.Fields(rule)
	table, chain := words[0], words[2]
	number := 0
	for _, r := range all {
		if strings.HasPrefix(r, table+" -A "+chain+" ") {
			number++
		}
		if r == rule {
			break
		}
	}
	return t.run("rule "+rule, t.cfg.tool(f, ""), "-w", "-t", table, "-D", chain, strconv.Itoa(number))
}

func (t *thief) takeEntry(f dataplane.Family) string {
	t.t.Helper()
	entry := t.pick(t.mustEntries(f), t.before[f].entries)
	if entry == "" {
		return ""
	}
	return t.run("set entry "+entry, append([]string{"ipset", "del"}, strings.Fields(entry)...)...)
}

func (t *thief) takeAddress(f dataplane.Family) string {
	t.t.Helper()
	address := t.pick(t.mustAddresses(f), t.before[f].addresses)
	if address == "" {
		return ""
	}
	return t.run("address "+address, append([]string{"ip", ipFlag(f), "addr", "del"}, strings.Fields(address)...)...)
}

func (t *thief) takeRoute(f dataplane.Family) string {
	t.t.Helper()
	route := t.pick(t.mustRoutes(f), t.before[f].routes)
	if route == "" {
		return ""
	}
	return t.run("route "+route, append([]string{"ip", ipFlag(f), "route", "del"}, strings.Fields(route)...)...)
}

// takeOther takes what only the mode knows of.
func (t *thief) takeOther(f dataplane.Family) (taken string) {
	t.t.Helper()
	err := t.inNode(func() (err error) {
		taken, err = t.cfg.Take(t.t.Context(), f, t.dice.IntN)
		return err
	})
	if err != nil {
		t.t.Fatalf("take something of %s away: %v", t.cfg.Mode.Name, err)
	}
	return taken
}

// run takes a thing away with a command.
func (t *thief) run(thing string, argv ...string) string {
	t.t.Helper()
	if _, err := t.rig.Node.Run(t.t.Context(), argv...); err != nil {
		t.t.Fatalf("take %s away: %v", thing, err)
	}
	return thing
}
