package netfilter

import (
	"net/netip"
	"testing"

	"github.com/portway/portway/modules/dataplane"
)

// TestCounted counts real packets, by a rule among others that look like it.
func TestCounted(t *testing.T) {
	onBackends(t, dataplane.IPv4, func(t *testing.T, h *Host) {
		command(t, "ip", "link", "set", "lo", "up")
		pinged := Rule{
			Destination: MatchAddr(netip.MustParseAddr("127.0.0.2")), Comment: "not a counter: -c 7 7 -j DROP", Target: Accept(),
		}
		other := Rule{Destination: MatchAddr(netip.MustParseAddr("127.0.0.3")), Target: Drop()}
		bare := Rule{Protocol: Is(dataplane.SCTP)}
		restore(t, h, Transaction{Table: Filter, Chains: []Chain{chain("COUNTED", pinged, other, bare)}})
		command(t, h.backend.command, "-A", "OUTPUT", "-j", "COUNTED")
		command(t, "ping", "-c", "2", "-i", "0.01", "127.0.0.2")
		have, err := h.Counted(t.Context(), Filter, "COUNTED")
		if err != nil {
			t.Fatal(err)
		}
		if len(have) != 3 || have[0].Rule != pinged || have[1].Rule != other || have[2].Rule != bare {
			t.Fatalf("read %+v", have)
		}
		if have[0].Packets != 2 || have[1].Packets != 0 || have[2].Packets != 0 {
			t.Errorf("counted %d, %d and %d packets, want 2, 0 and 0", have[0].Packets, have[1].Packets, have[2].Packets)
		}
		if _, err := h.Counted(t.Context(), Filter, "MISSING"); err == nil {
			t.Error("a chain that does not exist was counted")
		}
	})
}

func FuzzReadCounted(f *testing.F) {
	f.Add("-N K\n-A K -m conntrack --ctstate INVALID -c 12 3400 -j DROP\n")
	f.Add("-A K -c \n")
	f.Add("-A K -m comment --comment \"a -c 1 2\" -c 0 0\n")
	f.Fuzz(func(_ *testing.T, out string) { _, _ = readCounted(Filter, out) })
}
