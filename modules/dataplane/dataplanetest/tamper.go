package dataplanetest

import (
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/portway/portway/modules/dataplane"
	"pgregory.net/rapid"
)

// tamper is the other side of laws 1 and 2: what somebody else takes away, the
// audit finds and a Sync that distrusts its memory repairs.
// Proves S9.4, kubernetes#81517.
func tamper(t *rapid.T, cfg Config) {
	state := States().Draw(t, "state")
	b := newBed(t, cfg, state)
	dice := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "choice of rules"), 0))
	before := b.mustRules()
	b.mustSync(state)
	settled := b.mustDump()
	for range rapid.IntRange(1, 5).Draw(t, "rules taken") {
		f, taken := b.takeRule(before, dice)
		if taken == "" {
			return
		}
		b.checkRepaired(f, taken)
	}
	if after := b.mustDump(); after != settled {
		b.fail("before (-) and after (+) repairs:\n%s", difference(settled, after))
	}
	b.checkArrivals(shotsOf(t, b, 150))
}

func (b *bed) checkRepaired(f dataplane.Family, taken string) {
	b.t.Helper()
	found, err := b.audit()
	if err != nil {
		b.fail("%v", err)
	}
	if len(found) == 0 {
		b.fail("the audit does not see that this %s rule is gone: %s", f, taken)
	}
	reports, err := b.sync(true)
	if err != nil {
		b.fail("sync: %v", err)
	}
	if r := reports[f]; r.Writes == 0 || len(r.Repaired) == 0 {
		b.fail("a distrusting sync writes %d and reports %v, and this %s rule is gone: %s", r.Writes, r.Repaired, f, taken)
	}
	b.checkSettled()
}

// takeRule deletes one of the mode's rules. It does so by number: the tools do
// not find every rule that they have printed.
func (b *bed) takeRule(before map[dataplane.Family][]string, dice *rand.Rand) (f dataplane.Family, rule string) {
	b.t.Helper()
	f = b.cfg.families()[dice.IntN(len(b.cfg.families()))]
	all := b.mustRules()[f]
	ours := onlyIn(strings.Join(all, "\n"), strings.Join(before[f], "\n"))
	if len(ours) == 0 {
		return f, ""
	}
	rule = ours[dice.IntN(len(ours))]
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
	argv := []string{b.cfg.tool(f, ""), "-w", "-t", table, "-D", chain, strconv.Itoa(number)}
	if _, err := b.rig.Node.Run(b.t.Context(), argv...); err != nil {
		b.t.Fatalf("take %q away: %v", rule, err)
	}
	return f, rule
}

// mustRules lists the node's iptables rules, each after its table's name.
func (b *bed) mustRules() map[dataplane.Family][]string {
	b.t.Helper()
	all := make(map[dataplane.Family][]string)
	for _, f := range b.cfg.families() {
		out, err := b.rig.Node.Run(b.t.Context(), b.cfg.tool(f, "-save"))
		if err != nil {
			b.t.Fatalf("%v", err)
		}
		table := ""
		for line := range strings.Lines(out) {
			switch line = strings.TrimSpace(line); {
			case strings.HasPrefix(line, "*"):
				table = line[1:]
			case strings.HasPrefix(line, "-A "):
				all[f] = append(all[f], table+" "+line)
			}
		}
	}
	return all
}
