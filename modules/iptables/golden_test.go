package iptables

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
	"github.com/portway/portway/modules/netfilter/program"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestShape shows what the mode writes, for people to look at. What the rules
// mean is proven with packets, in the other tests.
func TestShape(t *testing.T) {
	sticky := clusterIP("sticky", "10.96.0.3:80", endpoints("10.244.1.11:8080", "10.244.2.11:8080"))
	sticky.Affinity = 3 * 3600e9
	six := clusterIP("six", "[fd00:96::5]:80", endpoints("[fd00:244:1::11]:8080", "[fd00:244:2::11]:8080"))
	for _, c := range []struct {
		name   string
		family dataplane.Family
		sps    []*dataplane.ServicePort
	}{
		{"empty", dataplane.IPv4, nil},
		{"empty6", dataplane.IPv6, nil},
		{"clusterip", dataplane.IPv4, []*dataplane.ServicePort{
			clusterIP("web", "10.96.0.1:80", endpoints("10.244.1.11:8080", "10.244.2.11:8080", "10.244.2.12:8080")),
		}},
		{"clusterip6", dataplane.IPv6, []*dataplane.ServicePort{six}},
		{"no-endpoints", dataplane.IPv4, []*dataplane.ServicePort{clusterIP("none", "10.96.0.2:80", nil)}},
		{"affinity", dataplane.IPv4, []*dataplane.ServicePort{sticky}},
		{"loadbalancer", dataplane.IPv4, []*dataplane.ServicePort{
			loadBalancer(t, endpoints("10.244.2.11:8080"), nil, false),
		}},
		{"loadbalancer-local-ranges", dataplane.IPv4, []*dataplane.ServicePort{
			loadBalancer(t, endpoints("10.244.2.11:8080"), endpoints("10.244.1.11:8080"), true),
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := heldOf(t, c.family, c.sps...).text(c.name != "empty" && c.name != "empty6")
			file := filepath.Join("testdata", c.name+".golden")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("run with -update and look at the difference:\n%s", got)
			}
		})
	}
}

// text is what is held as iptables-save and "ipset save" print it, with or
// without the chains that no Service changes.
func (h held) text(servicesOnly bool) string {
	var b strings.Builder
	ids := slices.SortedFunc(maps.Keys(h.chains), func(x, y program.ChainID) int {
		return cmp.Or(-strings.Compare(string(x.Table), string(y.Table)), strings.Compare(x.Name, y.Name))
	})
	for _, id := range ids {
		if servicesOnly && slices.Equal(h.chains[id], h.empty[id]) && slices.Contains(roots(), id) {
			continue
		}
		fmt.Fprintf(&b, "# %s\n", id)
		for _, r := range h.chains[id] {
			fmt.Fprintf(&b, "-A %s %s\n", id.Name, r)
		}
	}
	for _, s := range h.sets {
		if servicesOnly && slices.Equal(s.Entries, h.emptySets[s.Name]) && !s.Expires {
			continue
		}
		fmt.Fprintf(&b, "# ipset %s %s\n", s.Name, s.Type)
		for _, e := range s.Entries {
			fmt.Fprintf(&b, "add %s %s\n", s.Name, netfilter.SetChange{Type: s.Type, Entry: e}.EntryText())
		}
	}
	return b.String()
}
