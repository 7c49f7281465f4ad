package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/portway/portway/modules/dataplane"
)

// able is a mode that runs in the families given.
func able(name string, families ...dataplane.Family) dataplane.Mode {
	return dataplane.Mode{
		Name: name,
		Probe: func(_ context.Context, f dataplane.Family) error {
			if !slices.Contains(families, f) {
				return errors.New("the kernel lacks " + name)
			}
			return nil
		},
		Open: func(context.Context, dataplane.Family) (dataplane.Plane, error) { return nil, errors.New("not opened") },
	}
}

const v4, v6 = dataplane.IPv4, dataplane.IPv6

func TestChoose(t *testing.T) {
	everything := []dataplane.Mode{able("iptables", v4, v6), able("ipvs", v4, v6), able("userspace", v4, v6)}
	noIPVS := []dataplane.Mode{able("iptables", v4, v6), able("ipvs"), able("userspace", v4, v6)}
	bare := []dataplane.Mode{able("iptables"), able("ipvs"), able("userspace", v4, v6)}
	ipvs4 := []dataplane.Mode{able("iptables", v4, v6), able("ipvs", v4), able("userspace", v4, v6)}
	both := []dataplane.Family{v4, v6}
	for _, test := range []struct {
		name         string
		modes        []dataplane.Mode
		kernel, node []dataplane.Family
		proxy, note  string // configured, and annotated
		noOther      bool
		want         string // mode and families
		fellBack     bool
		wantErr      string
	}{
		{name: "nothing said", modes: everything, kernel: both, node: both, want: "iptables [IPv4 IPv6]"},
		{name: "nothing said, a bare kernel", modes: bare, kernel: both, node: both, want: "userspace [IPv4 IPv6]"},
		{name: "configured", modes: everything, kernel: both, node: both, proxy: "ipvs", want: "ipvs [IPv4 IPv6]"},
		{name: "annotated", modes: everything, kernel: both, node: both, note: "ipvs", want: "ipvs [IPv4 IPv6]"},
		{name: "configured beats annotated", modes: everything, kernel: both, node: both, proxy: "iptables", note: "ipvs", want: "iptables [IPv4 IPv6]"},
		{name: "annotated nonsense", modes: everything, kernel: both, node: both, note: "fast", want: "iptables [IPv4 IPv6]"},
		{name: "falls back", modes: noIPVS, kernel: both, node: both, proxy: "ipvs", want: "iptables [IPv4 IPv6]", fellBack: true},
		{name: "falls back twice", modes: bare, kernel: both, node: both, proxy: "ipvs", want: "userspace [IPv4 IPv6]", fellBack: true},
		{name: "annotated, falls back", modes: noIPVS, kernel: both, node: both, note: "ipvs", want: "iptables [IPv4 IPv6]", fellBack: true},
		{name: "must not fall back", modes: noIPVS, kernel: both, node: both, proxy: "ipvs", noOther: true, wantErr: "the mode ipvs cannot run here"},
		{name: "annotated, must not fall back", modes: noIPVS, kernel: both, node: both, note: "ipvs", noOther: true, wantErr: "the mode ipvs cannot run here"},
		{name: "nothing said, must not fall back", modes: bare, kernel: both, node: both, noOther: true, want: "userspace [IPv4 IPv6]"},
		{name: "a node of one family", modes: everything, kernel: both, node: both[1:], want: "iptables [IPv4 IPv6]"},
		{name: "a family that only the node lacks", modes: ipvs4, kernel: both, node: both[:1], proxy: "ipvs", want: "ipvs [IPv4]"},
		{name: "a family that the node needs", modes: ipvs4, kernel: both, node: both, proxy: "ipvs", want: "iptables [IPv4 IPv6]", fellBack: true},
		{name: "no IPv6", modes: everything, kernel: both[:1], node: both, want: "iptables [IPv4]"},
		{name: "nothing can run", modes: bare[:2], kernel: both, node: both, wantErr: "no proxy mode can run here"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := &chooser{
				modes: remembered(test.modes), kernel: test.kernel, proxy: test.proxy, noOther: test.noOther,
				log: discard(),
			}
			have, err := c.choose(t.Context(), test.note, test.node)
			if test.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), test.wantErr) {
					t.Fatalf("error %v, want %q", err, test.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var families []string
			for _, f := range have.families {
				families = append(families, f.String())
			}
			if s := have.mode.Name + " [" + strings.Join(families, " ") + "]"; s != test.want || have.fellBack() != test.fellBack {
				t.Errorf("%s, fell back: %v; want %s, %v", s, have.fellBack(), test.want, test.fellBack)
			}
			if have.fellBack() && !strings.Contains(have.because, "the kernel lacks ipvs") {
				t.Errorf("fell back because %q", have.because)
			}
		})
	}
}

func TestCheck(t *testing.T) {
	c := func(proxy string, noOther bool, modes ...dataplane.Mode) error {
		return (&chooser{
			modes: remembered(modes), kernel: []dataplane.Family{v4, v6}, proxy: proxy, noOther: noOther,
			log: discard(),
		}).check(t.Context())
	}
	if err := c("", false, able("iptables", v6)); err != nil {
		t.Errorf("one family is enough to start: %v", err)
	}
	if err := c("", false, able("iptables")); err == nil {
		t.Error("nothing can run, and that is no error")
	}
	if err := c("ipvs", false, able("iptables", v4), able("ipvs")); err != nil {
		t.Errorf("it may fall back: %v", err)
	}
	if err := c("ipvs", true, able("iptables", v4), able("ipvs")); err == nil || strings.Contains(err.Error(), "iptables") {
		t.Errorf("it must not fall back, and the error is %v", err)
	}
}

func TestProbesAreAskedOnce(t *testing.T) {
	asked := 0
	m := dataplane.Mode{Name: "iptables", Probe: func(context.Context, dataplane.Family) error { asked++; return nil }}
	probe := remembered([]dataplane.Mode{m})[0].Probe
	for range 3 {
		if err := errors.Join(probe(t.Context(), v4), probe(t.Context(), v6)); err != nil {
			t.Fatal(err)
		}
	}
	if asked != 2 {
		t.Errorf("asked %d times about two families", asked)
	}
}
