package netfilter

import (
	"slices"
	"testing"
)

func TestPutInFront(t *testing.T) {
	ours, other, cali := Rule{Target: Jump("OURS")}, Rule{Target: Jump("OTHER")}, Rule{Target: Jump("cali-INPUT")}
	second := Rule{Target: Jump("OURS-TOO")}
	owns := func(r Rule) bool { return r.Target.Name == "OURS" || r.Target.Name == "OURS-TOO" }
	want := []Rule{ours, second}
	for _, c := range []struct {
		name            string
		have            []Rule
		removed, placed int
	}{
		{"nothing there", nil, 0, 2},
		{"in place", []Rule{ours, second, other}, 0, 0},
		{"behind Calico", []Rule{cali, ours, second}, 0, 0},
		{"behind somebody else", []Rule{other, ours, second}, 2, 2},
		{"in the wrong order", []Rule{second, ours}, 2, 2},
		{"twice", []Rule{ours, second, ours}, 3, 2},
		{"one is missing", []Rule{second}, 1, 2},
	} {
		var tx Transaction
		tx.PutInFront("INPUT", c.have, want, owns)
		if len(tx.Remove) != c.removed || len(tx.Insert) != c.placed {
			t.Errorf("%s: removes %d and inserts %d, want %d and %d", c.name, len(tx.Remove), len(tx.Insert), c.removed, c.placed)
		}
		for i, p := range tx.Insert {
			if p.At != i+1 || p.Rule != want[i] {
				t.Errorf("%s: rule %d is put as %+v", c.name, i, p)
			}
		}
	}
}

func TestAround(t *testing.T) {
	change := func(set string) SetChange { return SetChange{Set: set, Type: HashIP} }
	p := SetPlan{
		Create:  []Set{{Name: "refuse", Entries: []SetEntry{{}}}, {Name: "mean", Type: HashIP, Entries: []SetEntry{{}}}},
		Add:     []SetChange{change("refuse"), change("mean")},
		Remove:  []SetChange{change("refuse"), change("mean")},
		Destroy: []string{"old"},
	}
	before, after := p.Around(func(set string) bool { return set == "mean" })
	if len(before.Create) != 2 || len(before.Create[0].Entries) != 1 || len(before.Create[1].Entries) != 0 {
		t.Errorf("made before: %+v", before.Create)
	}
	if !slices.Equal(before.Add, []SetChange{change("refuse")}) || !slices.Equal(before.Remove, []SetChange{change("mean")}) {
		t.Errorf("before: adds %v, removes %v", before.Add, before.Remove)
	}
	if !slices.Equal(after.Add, []SetChange{change("mean"), change("mean")}) || !slices.Equal(after.Remove, []SetChange{change("refuse")}) {
		t.Errorf("after: adds %v, removes %v", after.Add, after.Remove)
	}
	if len(before.Destroy) != 0 || len(after.Destroy) != 1 {
		t.Error("sets are destroyed while rules may name them")
	}
}

func TestWrites(t *testing.T) {
	tx := Transaction{Chains: []Chain{{Name: "EMPTY"}, {Name: "TWO", Rules: make([]Rule, 2)}}, Insert: make([]PlacedRule, 1), Delete: []string{"OLD"}}
	if n := tx.Writes(); n != 5 {
		t.Errorf("a transaction writes %d, want 5", n)
	}
	p := SetPlan{Create: []Set{{Entries: make([]SetEntry, 2)}}, Add: make([]SetChange, 1), Destroy: []string{"old"}}
	if n := p.Writes(); n != 5 {
		t.Errorf("a plan of sets writes %d, want 5", n)
	}
}
