package iptables

import (
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
	"github.com/portway/portway/modules/netfilter/netfiltertest"
)

// TestReportCountsRules: what a report says of the rules that are held is what
// a reading finds, after changes of all sorts.
func TestReportCountsRules(t *testing.T) {
	k := netfiltertest.New(dataplane.IPv4)
	p := fakePlane(k)
	sps := many(20)
	for _, step := range []struct {
		name     string
		want     []*dataplane.ServicePort
		distrust bool
		idle     bool
	}{
		{"cold start", sps[:15], false, false},
		{"more", sps, false, false},
		{"fewer", sps[:5], false, false},
		{"nothing new", sps[:5], true, true},
		{"none", nil, false, false},
	} {
		report := mustSync(t, p, snapshotOf(t, step.want...), time.Now(), step.distrust)
		for _, table := range p.program.Layout.Tables {
			held := 0
			err := k.Save(t.Context(), []netfilter.Table{table}, func(_ netfilter.Table, c netfilter.Chain) error {
				if c.Policy == "" {
					held += len(c.Rules)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if got := report.Objects[string(table)].Held; got != held {
				t.Errorf("%s: %d rules in %s, a reading finds %d", step.name, got, table, held)
			}
		}
		written := report.Objects["nat"].Written
		if (written == 0) != step.idle {
			t.Errorf("%s: %d rules written to nat", step.name, written)
		}
	}
}
