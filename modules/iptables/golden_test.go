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
			got := modelOf(t, c.family, c.sps...).text(c.name != "empty" && c.name != "empty6")
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

// text is a model as iptables-save and "ipset save" print it, with or without
// the chains that no Service changes.
func (m *model) text(servicesOnly bool) string {
	m.allDirty()
	var b strings.Builder
	ids := slices.SortedFunc(maps.Keys(m.digests(newDigester())), func(x, y chainID) int {
		return cmp.Or(-strings.Compare(string(x.table), string(y.table)), strings.Compare(x.name, y.name))
	})
	for _, id := range ids {
		fixed := slices.Contains(roots(), id) && len(m.rules(id)) == len(m.frame.head(id))+len(m.frame.tail(id))
		if servicesOnly && fixed {
			continue
		}
		fmt.Fprintf(&b, "# %s\n", id)
		for _, r := range m.chainRules(id) {
			fmt.Fprintf(&b, "-A %s %s\n", id.name, r)
		}
	}
	for _, s := range m.wantSets() {
		if servicesOnly && len(s.Entries) == 0 && !s.Expires {
			continue
		}
		fmt.Fprintf(&b, "# ipset %s %s\n", s.Name, s.Type)
		for _, e := range s.Entries {
			fmt.Fprintf(&b, "add %s %s\n", s.Name, entryText(netfilter.SetChange{Type: s.Type, Entry: e}))
		}
	}
	return b.String()
}
