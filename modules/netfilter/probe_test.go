package netfilter

import (
	"strings"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
)

// needs is about what the planes need.
func needs(f dataplane.Family) Needs {
	n := Needs{
		Rules: map[Table][]Rule{
			NAT:    {{DestType: Local}, {Target: Masquerade(true)}, {Probability: OneIn(2), Comment: "c"}},
			Filter: {{Conntrack: ConntrackMatch{States: StateNew}, Target: Reject(PortUnreachable(f))}},
		},
		Sets: everySet(f),
	}
	for _, s := range n.Sets {
		parts := strings.TrimSuffix(strings.Repeat("dst,", s.Type.dimensions()), ",")
		n.Rules[NAT] = append(n.Rules[NAT], Rule{Sets: [2]SetMatch{{Name: s.Name, Parts: parts}}})
	}
	n.Rules[NAT] = append(n.Rules[NAT], Rule{Target: AddSet("T-TIME", "src", 60)})
	return n
}

func TestProbe(t *testing.T) {
	for _, f := range dataplane.Families() {
		onBackends(t, f, func(t *testing.T, h *Host) {
			if err := Probe(t.Context(), h, needs(f)); err != nil {
				t.Fatal(err)
			}
			for _, table := range Tables() {
				if _, left := save(t, h, table)[probeName]; left {
					t.Errorf("the chain is left in table %s", table)
				}
			}
			if out := command(t, "ipset", "list", "-n"); out != "" {
				t.Errorf("sets are left: %s", out)
			}
		})
	}
}

// Proves pkgs#951.
func TestProbeTellsWhatIsMissing(t *testing.T) {
	reject := Needs{Rules: map[Table][]Rule{NAT: {{Target: Reject("icmp-port-unreachable")}, {Target: Accept()}}}}
	set := Needs{Sets: []Set{{Type: "hash:nonsense", Family: dataplane.IPv4}}}
	accept := Needs{Rules: map[Table][]Rule{NAT: {{Target: Accept()}}}}
	rows := []struct {
		name  string
		needs Needs
		setup func(t *testing.T)
		want  []string
	}{
		{"a target that the table does not take", reject, nil, []string{"table nat", "load the xt_ modules"}},
		{"a set of a type that the kernel lacks", set, nil, []string{"ipset: the kernel cannot make a set of type hash:nonsense", "load the module ip_set_hash_nonsense"}},
		{"no right to read", accept, func(t *testing.T) {
			programs(t, `exec /usr/bin/setpriv --reuid 65534 --clear-groups PROGRAM "$@"`, "iptables-nft", "iptables-nft-restore")
		}, []string{"iptables: no permission to read or write table nat: run as root or with CAP_NET_ADMIN"}},
		{"rules of nft in the table", accept, func(t *testing.T) {
			command(t, "nft", "add table ip nat; add chain ip nat x; add rule ip nat x ct state new meta cpu 1 dnat to numgen random mod 2 map { 0: 10.0.0.1, 1: 10.0.0.2 }")
		}, []string{"table nat holds rules that only nft understands"}},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			enterNamespace(t)
			if row.setup != nil {
				row.setup(t)
			}
			err := Probe(t.Context(), NewHost(testBackend(NFT, dataplane.IPv4), time.Second), row.needs)
			if err == nil {
				t.Fatal("all is said to be well")
			}
			for _, want := range row.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %q, want %q in it", err, want)
				}
			}
		})
	}
}
