package kernel

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/portway/portway/modules/dataplane"
)

// Numbers of linux/ip_vs.h.
const (
	familyName    = "IPVS"
	familyVersion = 1

	cmdNewService = 1
	cmdSetService = 2
	cmdDelService = 3
	cmdGetService = 4
	cmdNewDest    = 5
	cmdSetDest    = 6
	cmdDelDest    = 7
	cmdGetDest    = 8
	cmdSetConfig  = 12
	cmdGetConfig  = 13

	attrService       = 1
	attrDest          = 2
	attrTimeoutTCP    = 4
	attrTimeoutTCPFin = 5
	attrTimeoutUDP    = 6

	serviceFamily    = 1
	serviceProtocol  = 2
	serviceAddr      = 3
	servicePort      = 4
	serviceMark      = 5
	serviceScheduler = 6
	serviceFlags     = 7
	serviceTimeout   = 8
	serviceNetmask   = 9

	destAddr     = 1
	destPort     = 2
	destForward  = 3
	destWeight   = 4
	destUpper    = 5
	destLower    = 6
	destActive   = 7
	destInactive = 8
	destFamily   = 11

	forwardMask = 0x7
)

var commands = [...]byte{
	AddServer: cmdNewService, SetServer: cmdSetService, DeleteServer: cmdDelService,
	AddReal: cmdNewDest, SetReal: cmdSetDest, DeleteReal: cmdDelDest,
}

// generic writes the header of generic netlink.
func (m *message) generic(command byte) {
	m.buf = append(m.buf, command, familyVersion, 0, 0)
}

// bodyOf leaves out the header of generic netlink.
func bodyOf(answer []byte) []byte { return answer[min(len(answer), sizeofGeneric):] }

const sizeofGeneric = 4

// op writes the body of an op.
func (m *message) op(o *Op) {
	m.generic(commands[o.Verb])
	nest := m.open(attrService | unix.NLA_F_NESTED)
	m.key(o.Key)
	if o.Verb == AddServer || o.Verb == SetServer {
		m.server(o.Key, o.Server)
	}
	m.close(nest)
	if !o.Verb.OfReal() {
		return
	}
	nest = m.open(attrDest | unix.NLA_F_NESTED)
	m.uint16(destFamily, family(o.Real.Addr()))
	m.bytes(destAddr, o.Real.Addr().AsSlice())
	m.port(destPort, o.Real.Port())
	if o.Verb != DeleteReal {
		m.uint32(destForward, uint32(Masquerade))
		m.uint32(destWeight, uint32(o.Weight))
		m.uint32(destUpper, 0)
		m.uint32(destLower, 0)
	}
	m.close(nest)
}

func (m *message) key(k Key) {
	m.uint16(serviceFamily, family(k.Addr))
	m.uint16(serviceProtocol, uint16(k.Protocol))
	m.bytes(serviceAddr, k.Addr.AsSlice())
	m.port(servicePort, k.Port)
}

func (m *message) server(k Key, s Server) {
	flags := s.Flags &^ (flagPersistent | flagHashed)
	if s.Persist > 0 {
		flags |= flagPersistent
	}
	m.text(serviceScheduler, schedulerName(s.Scheduler))
	m.uint32(serviceFlags, uint32(flags), ^uint32(0))
	m.uint32(serviceTimeout, seconds(s.Persist))
	m.uint32(serviceNetmask, netmask(k.Family(), s.PersistBits))
}

// schedulerName replaces what cannot be the name of a scheduler by one that no
// scheduler has: it may come from an annotation, so it may be longer than the
// kernel reads, hold a NUL, or be "none", with which the kernel would make a
// virtual server that serves nobody.
func schedulerName(name string) string {
	const longest, unknown = 15, "-"
	if name == "" || name == "none" || len(name) > longest {
		return unknown
	}
	for _, r := range name {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '_' && r != '-' {
			return unknown
		}
	}
	return name
}

// netmask is, for IPv4, a mask in the byte order of the network and, for IPv6,
// the length of a prefix.
func netmask(f dataplane.Family, length uint8) uint32 {
	if length == 0 {
		length = uint8(f.Bits())
	}
	if f == dataplane.IPv6 {
		return uint32(length)
	}
	var raw [4]byte
	binary.BigEndian.PutUint32(raw[:], ^uint32(0)<<(32-uint(length)))
	return binary.NativeEndian.Uint32(raw[:])
}

// maskLength is the reverse of netmask; 0 stands for whole addresses.
func maskLength(f dataplane.Family, mask uint32) uint8 {
	length := uint8(mask)
	if f == dataplane.IPv4 {
		length = uint8(bits.OnesCount32(mask))
	}
	if int(length) == f.Bits() {
		return 0
	}
	return length
}

func family(a netip.Addr) uint16 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// serverOf reads a virtual server. It is false for one that a mark selects.
func serverOf(body []byte) (v VirtualServer, ok bool) {
	var addr []byte
	var af uint16
	var flags Flags
	var mask uint32
	for kind, value := range nested(bodyOf(body), attrService) {
		switch kind {
		case serviceFamily:
			af = toUint16(value)
		case serviceProtocol:
			v.Key.Protocol = dataplane.Protocol(toUint16(value))
		case serviceAddr:
			addr = value
		case servicePort:
			v.Key.Port = toPort(value)
		case serviceScheduler:
			v.Server.Scheduler = unix.ByteSliceToString(value)
		case serviceFlags:
			flags = Flags(toUint32(value))
		case serviceTimeout:
			v.Server.Persist = time.Duration(toUint32(value)) * time.Second
		case serviceNetmask:
			mask = toUint32(value)
		}
	}
	v.Key.Addr = addrOf(af, addr)
	v.Server.Flags = flags &^ (flagPersistent | flagHashed)
	v.Server.PersistBits = maskLength(v.Key.Family(), mask)
	if flags&flagPersistent == 0 {
		v.Server.Persist = 0
	}
	return v, v.Key.Addr.IsValid()
}

// realOf reads a real server of a virtual server of a family. Kernels before
// 3.18 do not tell the family of a real server (moby/ipvs#19).
func realOf(body []byte, f dataplane.Family) (r Real, ok bool) {
	var addr []byte
	var port uint16
	af := uint16(unix.AF_INET)
	if f == dataplane.IPv6 {
		af = unix.AF_INET6
	}
	for kind, value := range nested(bodyOf(body), attrDest) {
		switch kind {
		case destFamily:
			af = toUint16(value)
		case destAddr:
			addr = value
		case destPort:
			port = toPort(value)
		case destForward:
			r.Forward = Forward(toUint32(value) & forwardMask)
		case destWeight:
			r.Weight = int(int32(toUint32(value)))
		case destUpper:
			r.Upper = toUint32(value)
		case destLower:
			r.Lower = toUint32(value)
		case destActive:
			r.Active = int(toUint32(value))
		case destInactive:
			r.Inactive = int(toUint32(value))
		}
	}
	r.Addr = netip.AddrPortFrom(addrOf(af, addr), port)
	return r, r.Addr.IsValid()
}

// addrOf reads an address, for which the kernel always gives 16 bytes.
func addrOf(af uint16, raw []byte) netip.Addr {
	size := 4
	if af == unix.AF_INET6 {
		size = 16
	}
	if len(raw) < size {
		return netip.Addr{}
	}
	a, _ := netip.AddrFromSlice(raw[:size])
	return a
}

// timeoutsOf reads the timeouts, which are seconds.
func timeoutsOf(body []byte) (t Timeouts) {
	for kind, value := range attributes(bodyOf(body)) {
		d := time.Duration(toUint32(value)) * time.Second
		switch kind {
		case attrTimeoutTCP:
			t.TCP = d
		case attrTimeoutTCPFin:
			t.TCPFin = d
		case attrTimeoutUDP:
			t.UDP = d
		}
	}
	return t
}
