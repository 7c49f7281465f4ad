package kernel

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Server is how a virtual server treats flows. It is comparable: what List
// reads back equals what was written, if Persist is whole seconds.
type Server struct {
	// Scheduler by its kernel name, such as "rr".
	Scheduler string
	// Persist is for how long a client address stays with its real server
	// after its last connection ended; 0 is not at all. The kernel counts
	// seconds: a fraction is rounded up. A binding lasts two minutes longer than
	// that while the last connection is in TIME_WAIT (kubernetes#89358).
	Persist time.Duration
	// PersistBits is the length of the prefix of client addresses that share
	// a binding; 0: each address has its own.
	PersistBits uint8
	Flags       Flags
}

// String describes the server in the options of ipvsadm.
func (s Server) String() string {
	text := "-s " + s.Scheduler
	if s.Persist > 0 {
		text += fmt.Sprintf(" -p %d", seconds(s.Persist))
	}
	if s.PersistBits > 0 {
		text += fmt.Sprintf(" -M %d", s.PersistBits)
	}
	if s.Flags != 0 {
		text += " " + s.Flags.String()
	}
	return text
}

// seconds rounds up: a shorter time than asked for is wrong, and 0 would mean
// none.
func seconds(d time.Duration) uint32 {
	return uint32((d + time.Second - 1) / time.Second)
}

// Flags of a virtual server, numbered as in linux/ip_vs.h.
type Flags uint32

const (
	// OnePacket schedules each packet of UDP by itself.
	OnePacket Flags = 0x4
	// HashFallback (sh, mh) takes another real server where the one that the
	// hash chose has weight 0 or is overloaded.
	HashFallback Flags = 0x8
	// HashPort (sh, mh) hashes the client's port, too. kube-proxy always sets
	// it with mh (kubernetes#114305).
	HashPort Flags = 0x10

	// flagThird is of schedulers that this package does not know.
	flagThird Flags = 0x20

	// flagPersistent goes with Server.Persist; flagHashed is the kernel's own
	// and is always set in what it gives back.
	flagPersistent Flags = 0x1
	flagHashed     Flags = 0x2
)

// String lists the flags as ipvsadm spells them.
func (f Flags) String() string {
	var words []string
	for _, one := range []struct {
		flag Flags
		name string
	}{{OnePacket, "ops"}, {HashFallback, "flag-1"}, {HashPort, "flag-2"}, {flagThird, "flag-3"}} {
		if f&one.flag != 0 {
			words = append(words, one.name)
			f &^= one.flag
		}
	}
	if f != 0 {
		words = append(words, fmt.Sprintf("%#x", uint32(f)))
	}
	return strings.Join(words, ",")
}

// VirtualServer is a virtual server as the kernel has it.
type VirtualServer struct {
	Key    Key
	Server Server
	Reals  []Real // sorted by address and port
	// Place is where it stands in the kernel's own order, from 1; 0 if that is not
	// known.
	Place int
}

// Find returns the real server with an address.
func (v *VirtualServer) Find(addr netip.AddrPort) (Real, bool) {
	i, ok := slices.BinarySearchFunc(v.Reals, addr, func(r Real, a netip.AddrPort) int { return r.Addr.Compare(a) })
	if !ok {
		return Real{}, false
	}
	return v.Reals[i], true
}

// String describes the server, without its real servers, as ipvsadm -S does.
func (v *VirtualServer) String() string { return v.Key.String() + " " + v.Server.String() }

// Real is a real server of a virtual server, as the kernel has it.
type Real struct {
	Addr   netip.AddrPort
	Weight int
	// Forward is Masquerade for every real server that this package adds.
	Forward Forward
	// Upper and Lower are the numbers of connections at which the kernel
	// stops giving it new ones, and starts again; 0 is without limit. This
	// package writes 0. Get reads them, List does not.
	Upper, Lower uint32
	// Active and Inactive count connections: of TCP those that are
	// established, and those that open, close or wait in TIME_WAIT; of other
	// protocols all are inactive. Both are NotCounted where nobody knows.
	Active, Inactive int
}

// NotCounted says that the number of connections is not known.
const NotCounted = -1

// AsAdded tells whether the real server is as AddReal with its weight makes
// it, whatever its connections.
func (r *Real) AsAdded() bool { return r.Forward == Masquerade && r.Upper == 0 && r.Lower == 0 }

// String describes the real server in the options of ipvsadm.
func (r Real) String() string {
	text := fmt.Sprintf("%s %s -w %d", r.Addr, r.Forward, r.Weight)
	if r.Upper != 0 || r.Lower != 0 {
		text += fmt.Sprintf(" -x %d -y %d", r.Upper, r.Lower)
	}
	return text
}

// Forward is how packets get to a real server, numbered as in linux/ip_vs.h.
type Forward uint8

// Masquerade is NAT; the others exist only on virtual servers of others.
const (
	Masquerade Forward = iota
	LocalNode
	Tunnel
	Route
)

// String returns the option of ipvsadm.
func (f Forward) String() string {
	switch f {
	case Masquerade:
		return "-m"
	case LocalNode:
		return "local"
	case Tunnel:
		return "-i"
	case Route:
		return "-g"
	}
	return fmt.Sprintf("Forward(%d)", uint8(f))
}

// SortServers puts virtual servers and their real servers into the order in
// which List returns them.
func SortServers(list []VirtualServer) {
	slices.SortFunc(list, func(a, b VirtualServer) int { return a.Key.Compare(b.Key) })
	for i := range list {
		list[i].Reals = sortReals(list[i].Reals)
	}
}

// Timeouts after which the connections of a network namespace that nobody uses
// are forgotten. 0 in SetTimeouts leaves one as it is.
type Timeouts struct {
	TCP, TCPFin, UDP time.Duration
}

// Or fills in what is 0 from o.
func (t Timeouts) Or(o Timeouts) Timeouts {
	return Timeouts{cmp.Or(t.TCP, o.TCP), cmp.Or(t.TCPFin, o.TCPFin), cmp.Or(t.UDP, o.UDP)}
}
