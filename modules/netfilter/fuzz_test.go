package netfilter

import (
	"errors"
	"math"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/vishvananda/netlink/nl"

	"github.com/portway/portway/modules/dataplane"
)

// Whatever the text, the rule prints it again, is the same when read again,
// and a rule without text means what its fields say.
func FuzzParseRule(f *testing.F) {
	for _, family := range dataplane.Families() {
		for _, rules := range features(family) {
			for _, r := range rules {
				f.Add(r.String())
			}
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		r := ParseRule(text)
		if r.String() != text {
			t.Errorf("%q prints %q", text, r)
		}
		if ParseRule(r.String()) != r {
			t.Errorf("%q is another rule when read again", text)
		}
		if r.Opaque && r.Text == "" && text != "" {
			t.Errorf("%q is opaque and its text is lost", text)
		}
	})
}

func FuzzReadSave(f *testing.F) {
	f.Add("*nat\n:A - [0:0]\n:INPUT ACCEPT [1:2]\n-A A -j B\n-A INPUT\nCOMMIT\n")
	f.Fuzz(func(t *testing.T, text string) {
		rules := 0
		err := ReadSave(strings.NewReader(text), func(_ Table, c Chain) error {
			rules += len(c.Rules)
			return nil
		})
		if err == nil && rules > strings.Count(text, "-A ") {
			t.Errorf("%d rules in %q", rules, text)
		}
	})
}

// What is read of "ipset save" is the same when it is written and read again.
func FuzzReadSets(f *testing.F) {
	for _, family := range dataplane.Families() {
		var text strings.Builder
		if err := WriteSets(&text, everySet(family)); err != nil {
			f.Fatal(err)
		}
		f.Add(text.String())
	}
	f.Add("create A hash:ip family inet hashsize 1024 maxelem 65536 timeout 5 skbinfo counters\nadd A 10.0.0.0/31 timeout 3 skbmark 0x1/0x1\n")
	f.Add("create A list:set size 8\nadd A B\n# nothing\ncreate B bitmap:port range 1-65535\nadd B 80\n")
	f.Fuzz(func(t *testing.T, text string) {
		sets, err := ReadSets(strings.NewReader(text))
		if err != nil {
			return
		}
		var written strings.Builder
		if err := WriteSets(&written, sets); err != nil {
			t.Fatal(err)
		}
		again, err := ReadSets(strings.NewReader(written.String()))
		if err != nil || !reflect.DeepEqual(again, sets) {
			t.Errorf("%q is read as\n%+v, written as %q and read again, %v, as\n%+v", text, sets, written.String(), err, again)
		}
	})
}

// Whatever the kernel may answer, of a set that is read every entry can be
// written.
func FuzzSetMessage(f *testing.F) {
	for _, family := range dataplane.Families() {
		for _, s := range everySet(family) {
			var w attributeWriter
			w.create(&s)
			list := w.open(nl.IPSET_ATTR_ADT | nl.NLA_F_NESTED)
			for i := range s.Entries {
				w.entry(s.Type, &s.Entries[i], 1)
			}
			w.close(list)
			f.Add(w.buf)
		}
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		s := Set{Name: setName(msg)}
		s.read(msg)
		for i := range s.Entries {
			if strings.Contains(s.entryText(&s.Entries[i]), "\n") {
				t.Errorf("an entry of more than a line: %+v", s.Entries[i])
			}
		}
	})
}

// What iptables-restore says is never taken for a line that is not there.
func FuzzRestoreOutput(f *testing.F) {
	f.Add([]byte("iptables-restore: line 3 failed\n"))
	f.Add([]byte("Error occurred at line: 2\nTry `iptables-restore -h' or 'iptables-restore --help' for more information.\n"))
	f.Add([]byte("iptables-restore v1.8.9 (nf_tables): \nline 4: RULE_APPEND failed (No such file or directory): rule in chain A\n"))
	f.Add([]byte("Another app is currently holding the xtables lock. Perhaps you want to use the -w option?\n"))
	tx := Transaction{Table: NAT, Chains: []Chain{{Name: "A", Rules: []Rule{{Target: Jump("B")}}}, {Name: "B"}}}
	f.Fuzz(func(t *testing.T, output []byte) {
		e := &RestoreError{Command: "iptables-restore", Err: errors.New("exit status 1")}
		e.explain(&tx, []byte(tx.String()), output)
		if e.Error() == "" || e.Chain != "" && e.Chain != "A" && e.Chain != "B" {
			t.Errorf("%q is explained as %+v", output, e)
		}
	})
}

// A dump that can be read can be walked, to an end for every packet.
func FuzzReadDump(f *testing.F) {
	f.Add("*nat\n:PREROUTING ACCEPT [0:0]\n:A - [0:0]\n-A PREROUTING -j A\n-A A -m statistic --mode random --probability 0.5 -j DNAT --to-destination 10.0.0.1:80\n-A A -j RETURN\nCOMMIT\n*filter\n:FORWARD DROP [0:0]\nCOMMIT\n", "create S hash:ip family inet\nadd S 10.0.0.1\n")
	f.Add("*filter\n:INPUT ACCEPT [0:0]\n:A - [0:0]\n-A INPUT -m set --match-set S dst,src -j A\n-A A -g A\nCOMMIT\n", "create S hash:ip,port family inet\n")
	f.Fuzz(func(t *testing.T, rules, sets string) {
		d, err := ReadDump(dataplane.IPv4, strings.NewReader(rules), strings.NewReader(sets))
		if err != nil {
			return
		}
		w, err := ReadWalker(t.Context(), d)
		if err != nil {
			t.Fatal(err)
		}
		for _, in := range []string{"", "eth0"} {
			p := PacketOf(dataplane.Flow{
				Src: netip.MustParseAddrPort("10.0.0.2:4000"), Dst: netip.MustParseAddrPort("10.0.0.1:80"), Protocol: dataplane.TCP, InInterface: in,
			})
			all, err := w.Follow(p)
			if errors.Is(err, ErrTangled) {
				continue
			}
			total := 0.0
			for _, o := range all {
				total += o.Probability
			}
			if math.Abs(total-1) > 1e-6 {
				t.Errorf("the ends of a packet from %q add up to %f", in, total)
			}
		}
	})
}
