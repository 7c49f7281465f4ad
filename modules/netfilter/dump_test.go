package netfilter

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/portway/portway/modules/dataplane"
)

// A walker reads the same from the kernel and from files saved of it.
func TestDumpIsLikeTheKernel(t *testing.T) {
	for _, f := range dataplane.Families() {
		onBackends(t, f, func(t *testing.T, h *Host) {
			changeSets(t, h, SetPlan{Create: everySet(f)})
			command(t, "ipset", "create", "STRANGE", "list:set", "size", "4")
			makeSets(t, f)
			for table, rules := range features(f) {
				restore(t, h, Transaction{Table: table, Chains: []Chain{chain("TEST", rules...), chain("SUB")}})
			}
			saved := command(t, h.backend.command+"-save")
			d, err := ReadDump(f, strings.NewReader(saved), strings.NewReader(command(t, "ipset", "save")))
			if err != nil {
				t.Fatal(err)
			}
			live, err := ReadWalker(t.Context(), h)
			if err != nil {
				t.Fatal(err)
			}
			dead, err := ReadWalker(t.Context(), d)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(live.Rules, dead.Rules) {
				t.Error("the rules differ")
			}
			for name, s := range live.Sets {
				if p := PlanSets([]Set{s}, []Set{dead.Sets[name]}); s.Type.isKnown() && !p.IsEmpty() {
					t.Errorf("set %s: %+v, saved as %+v", name, s, dead.Sets[name])
				}
			}
			if len(live.Sets) != len(dead.Sets) {
				t.Errorf("%d sets, saved as %d", len(live.Sets), len(dead.Sets))
			}
		})
	}
}

// What is written of a kernel is read as what iptables-save and ipset printed.
func TestWrittenDump(t *testing.T) {
	for _, f := range dataplane.Families() {
		onBackends(t, f, func(t *testing.T, h *Host) {
			changeSets(t, h, SetPlan{Create: everySet(f)})
			command(t, "ipset", "create", "STRANGE", "list:set", "size", "4")
			makeSets(t, f)
			for table, rules := range features(f) {
				restore(t, h, Transaction{Table: table, Chains: []Chain{chain("TEST", rules...), chain("SUB")}})
			}
			command(t, h.backend.command, "-P", "FORWARD", "DROP")
			want, err := ReadDump(f, strings.NewReader(command(t, h.backend.command+"-save")), strings.NewReader(command(t, "ipset", "save")))
			if err != nil {
				t.Fatal(err)
			}
			var rules, sets strings.Builder
			list, err := h.Sets(t.Context(), nil)
			if err := errors.Join(err, WriteRules(t.Context(), &rules, h), WriteSets(&sets, list)); err != nil {
				t.Fatal(err)
			}
			have, err := ReadDump(f, strings.NewReader(rules.String()), strings.NewReader(sets.String()))
			if err != nil {
				t.Fatalf("%v\n%s", err, sets.String())
			}
			if !reflect.DeepEqual(have.rules, want.rules) {
				t.Errorf("the rules differ:\n%s", rules.String())
			}
			if p := PlanSets(have.sets, want.sets); !p.IsEmpty() || len(have.sets) != len(want.sets) {
				t.Errorf("the sets differ by %+v:\n%s", p, sets.String())
			}
		})
	}
}

func TestDumpCannotBeWritten(t *testing.T) {
	d, err := ReadDump(dataplane.IPv4, strings.NewReader(serviceRules), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Restore(t.Context(), Transaction{}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("rules: %v", err)
	}
	if err := d.ChangeSets(t.Context(), SetPlan{}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("sets: %v", err)
	}
	stop := errors.New("enough")
	if err := d.Save(t.Context(), []Table{NAT}, func(Table, Chain) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("the visitor's error came back as %v", err)
	}
}

// What no kernel holds is refused, with the line.
func TestDumpRefuses(t *testing.T) {
	const head = "# a comment\n*mangle\n:A - [0:0]\nCOMMIT\n*nat\n:PREROUTING ACCEPT [0:0]\n:A - [0:0]\n:B - [0:0]\n-A PREROUTING -j A\n"
	for _, row := range []struct{ rules, want string }{
		{"-A A -j A\n", "line 10 of the saved rules: chain A leads back to itself"},
		{"-A A -j B\n-A B -j RETURN\n[1:1] -A B -g A\n", "line 12 of the saved rules: chain B leads back to itself"},
		{"-A B -j A\n-A PREROUTING -d fd00::/8 -j B\n", "line 11 of the saved rules: a rule for fd00:: among those of IPv4"},
		{"-A B -p tcp -j DNAT --to-destination [fd00::1]:80\n", "line 10 of the saved rules: a rule for fd00::1 among those of IPv4"},
		{"-A C -j A\n", "line 10 of the saved rules"},
	} {
		_, err := ReadDump(dataplane.IPv4, strings.NewReader(head+row.rules+"COMMIT\n"), nil)
		if err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%q: %v, want %q", row.rules, err, row.want)
		}
	}
	sets, err := ReadSets(strings.NewReader("create A hash:ip family inet counters comment timeout 9\n" +
		"add A 10.0.0.1 packets 1 bytes 2 timeout 7 comment \"of timeout 5\"\n"))
	if err != nil || sets[0].Entries[0].Timeout != 7 {
		t.Errorf("an entry with a comment is read as %+v, %v", sets, err)
	}
}

func TestReadSetsRefusesNonsense(t *testing.T) {
	rows := []string{
		"create\n", "destroy A\n", "add A 10.0.0.1\n", "create A hash:ip family\n", "create A hash:ip timeout x\n",
		"create A hash:ip family inet\nadd A 10.0.0.1,tcp:80\n",
		"create A hash:ip,port family inet\nadd A 10.0.0.1,tcp:80000\n",
		"create A hash:ip,port family inet\nadd A 10.0.0.1,foo:80\n",
		"create A hash:ip,port,ip family inet\nadd A 10.0.0.1,tcp:80,x\n",
		"create A hash:net family inet\nadd A 10.0.0.1/99\n",
		"create A hash:ip family inet\nadd A 10.0.0.1 timeout x\n",
		"create A hash:ip family inet\nadd A 10.0.0.1 skbmark x\n",
		"create A bitmap:port range 1-x\n",
		"create A hash:net family inet\nadd A 10.0.0.0/8 nomatch\n",
		"create A hash:ip family inet\nadd A 10.0.0.1 timeout\n",
	}
	for _, in := range rows {
		if sets, err := ReadSets(strings.NewReader(in)); err == nil {
			t.Errorf("%q was read as %v", in, sets)
		}
	}
}
