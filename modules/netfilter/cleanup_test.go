package netfilter

import (
	"fmt"
	"strings"
	"testing"

	"github.com/portway/portway/modules/dataplane"
)

// everything is what the save program prints, without times and counters.
func everything(t *testing.T, h *Host) string {
	t.Helper()
	var b strings.Builder
	for _, table := range Tables() {
		for line := range strings.Lines(command(t, h.backend.command+"-save", "-t", string(table))) {
			if line[0] != '#' {
				b.WriteString(line)
			}
		}
	}
	return b.String() + command(t, "ipset", "list", "-n")
}

// Foreign rules, chains and sets are byte-identical after a clean-up, also a
// second one, and nothing of ours is left.
func TestRemove(t *testing.T) {
	owned := Owned{
		Chain: func(_ Table, name string) bool { return strings.HasPrefix(name, "KUBE-") },
		Set:   func(name string) bool { return strings.HasPrefix(name, "KUBE-") },
		Rule: func(table Table, chain string, r Rule) bool {
			return table == Filter && chain == "INPUT" && r.Comment == "ours"
		},
	}
	const foreign = `*filter
:DOCKER - [0:0]
-A FORWARD -m limit --limit 5/min -j LOG --log-prefix "x: "
-A FORWARD -j DOCKER
-A DOCKER -p tcp -m multiport --dports 80,443 -j ACCEPT
COMMIT
*nat
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
COMMIT
`
	const ours = `*filter
:KUBE-FORWARD - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
-I FORWARD 1 -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-I FORWARD 3 -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A INPUT -m comment --comment ours -m mark --mark 0x1 -j ACCEPT
-A INPUT -m limit --limit 1/sec -j KUBE-FORWARD
-A KUBE-FORWARD -j KUBE-PROXY-FIREWALL
COMMIT
*nat
:KUBE-SERVICES - [0:0]
:KUBE-SVC-1 - [0:0]
:KUBE-LOOP - [0:0]
-I PREROUTING 1 -j KUBE-SERVICES
-A OUTPUT -g KUBE-SERVICES
-A KUBE-SERVICES -m set --match-set KUBE-CLIENTS src -j KUBE-SVC-1
-A KUBE-SVC-1 -p tcp -m limit --limit 1/sec -j KUBE-LOOP
COMMIT
*mangle
:KUBE-IPVS - [0:0]
-A OUTPUT -j KUBE-IPVS
COMMIT
`
	onBackends(t, dataplane.IPv4, func(t *testing.T, h *Host) {
		pipe := func(rules string) {
			command(t, "sh", "-c", fmt.Sprintf("cat <<'END' | %s --noflush\n%sEND", h.backend.command+"-restore", rules))
		}
		command(t, "ipset", "create", "foreign", "hash:ip")
		pipe(foreign)
		// The tables exist in any case; those of iptables-legacy stay.
		pipe("*mangle\nCOMMIT\n*raw\nCOMMIT\n")
		before := everything(t, h)
		command(t, "ipset", "create", "KUBE-CLIENTS", "hash:ip")
		pipe(ours)
		if everything(t, h) == before {
			t.Fatal("nothing was there to remove")
		}
		for i := range 2 {
			if err := Remove(t.Context(), h, owned); err != nil {
				t.Fatal(err)
			}
			if after := everything(t, h); after != before {
				t.Errorf("after clean-up %d:\n%s\nwant\n%s", i+1, after, before)
			}
		}
	})
}

// A set that a foreign rule uses cannot go; it is named, and the rest goes.
func TestRemoveGoesOn(t *testing.T) {
	onBackends(t, dataplane.IPv4, func(t *testing.T, h *Host) {
		for _, name := range []string{"KUBE-A", "KUBE-B"} {
			command(t, "ipset", "create", name, "hash:ip")
		}
		restore(t, h, Transaction{Table: Filter, Chains: []Chain{
			chain("FOREIGN", Rule{Sets: [2]SetMatch{{Name: "KUBE-A", Parts: "src"}}, Target: Return()}),
		}})
		err := Remove(t.Context(), h, Owned{Set: func(name string) bool { return strings.HasPrefix(name, "KUBE-") }})
		if err == nil || !strings.Contains(err.Error(), "KUBE-A") {
			t.Errorf("got %v, want an error that names KUBE-A", err)
		}
		if out := command(t, "ipset", "list", "-n"); out != "KUBE-A\n" {
			t.Errorf("sets left: %s", out)
		}
	})
}
