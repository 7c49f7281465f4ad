package ipvs

import (
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
	"github.com/portway/portway/modules/ipvs/kernel"
	"github.com/portway/portway/modules/netfilter"
)

// What was saved of a kernel gives the same answers as the kernel, in order and
// in disorder.
func TestSavedAnswersAlike(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		state := dataplanetest.States().Draw(t, "state")
		want, err := state.Snapshot(dataplane.Empty())
		if err != nil {
			t.Fatal(err)
		}
		other, err := dataplanetest.Successor(state).Draw(t, "next state").Snapshot(want)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range dataplane.Families() {
			m := newMemory(f, Options{})
			m.sync(t, want, false)
			m.savedAudits(t, want)
			m.savedExplains(t, state, want)
			m.savedAudits(t, other)
		}
	})
}

func (m *memory) savedAudits(t rig.TB, want *dataplane.Snapshot) {
	t.Helper()
	saved := m.save(t, want)
	live, err := m.Audit(t.Context(), want)
	if err != nil {
		t.Fatalf("%v", err)
	}
	read, err := saved.Audit(t.Context(), want)
	if err != nil || !reflect.DeepEqual(live, read) {
		t.Errorf("the audit of what was saved, %v, is\n%v\nand that of the kernel\n%v", err, read, live)
	}
}

func (m *memory) savedExplains(t rig.TB, state dataplanetest.State, want *dataplane.Snapshot) {
	t.Helper()
	saved := m.save(t, want)
	for _, s := range dataplanetest.Shots(state, want) {
		if dataplane.FamilyOf(s.Flow.Dst.Addr()) != m.family {
			continue
		}
		live, err := m.Explain(t.Context(), s.Flow)
		if err != nil {
			t.Fatalf("%v", err)
		}
		read, err := saved.Explain(t.Context(), s.Flow)
		if err != nil || !reflect.DeepEqual(live, read) {
			t.Errorf("%s: explained from what was saved, %v:\n%+v\nand from the kernel:\n%+v", s, err, read, live)
		}
	}
}

// save writes the kernel and reads it back.
func (m *memory) save(t rig.TB, want *dataplane.Snapshot) *Plane {
	t.Helper()
	var rules, sets, servers, locals, sysctls strings.Builder
	kept, err := m.rules.Sets(t.Context(), nil)
	if err != nil {
		t.Fatalf("%v", err)
	}
	list, err := m.ipvs.List(t.Context(), m.family)
	if err != nil {
		t.Fatalf("%v", err)
	}
	for _, err := range []error{
		netfilter.WriteRules(t.Context(), &rules, m.rules),
		netfilter.WriteSets(&sets, kept),
		kernel.WriteServers(&servers, list),
		kernel.WriteLocals(t.Context(), &locals, m.device),
		kernel.WriteSysctls(&sysctls, m.sysctls),
	} {
		if err != nil {
			t.Fatalf("%v", err)
		}
	}
	dump, err := netfilter.ReadDump(m.family, strings.NewReader(rules.String()), strings.NewReader(sets.String()))
	if err != nil {
		t.Fatalf("%v", err)
	}
	var s kernel.Saved
	if s.Servers, err = kernel.ReadServers(strings.NewReader(servers.String())); err != nil {
		t.Fatalf("%v", err)
	}
	if s.Device, err = kernel.ReadLocals(strings.NewReader(locals.String())); err != nil {
		t.Fatalf("%v", err)
	}
	if s.Sysctls, err = kernel.ReadSysctls(strings.NewReader(sysctls.String())); err != nil {
		t.Fatalf("%v", err)
	}
	p, err := NewSaved(m.family, m.options, dump, s, want.Node().Holds)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return p
}
