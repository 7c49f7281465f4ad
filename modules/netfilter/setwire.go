package netfilter

import (
	"encoding/binary"
	"net/netip"

	"github.com/portway/portway/modules/dataplane"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// revision of a set's type that we ask for: the first that has marks, Linux
// 3.18, so that both old kernels and old ipset programs know it.
func (t SetType) revision() byte {
	switch t {
	case HashIP:
		return 4
	case HashNet:
		return 6
	case HashIPPortNet:
		return 7
	case BitmapPort:
		return 3
	}
	return 5
}

// create writes what makes the set, without its entries.
func (w *attributeWriter) create(s *Set) {
	w.text(nl.IPSET_ATTR_SETNAME, s.Name)
	w.text(nl.IPSET_ATTR_TYPENAME, string(s.Type))
	w.bytes(nl.IPSET_ATTR_REVISION, s.Type.revision())
	w.bytes(nl.IPSET_ATTR_FAMILY, addressFamily(s.Family))
	data := w.open(nl.IPSET_ATTR_DATA | nl.NLA_F_NESTED)
	if s.Type == BitmapPort {
		w.uint16(nl.IPSET_ATTR_PORT_FROM, s.FirstPort)
		w.uint16(nl.IPSET_ATTR_PORT_TO, s.LastPort)
	} else if s.MaxEntries != 0 {
		w.uint32(nl.IPSET_ATTR_MAXELEM, s.MaxEntries)
	}
	if s.Expires {
		w.uint32(nl.IPSET_ATTR_TIMEOUT, s.Timeout)
	}
	if s.Marks {
		w.uint32(nl.IPSET_ATTR_CADT_FLAGS, nl.IPSET_FLAG_WITH_SKBINFO)
	}
	w.close(data)
}

func addressFamily(f dataplane.Family) byte {
	switch f {
	case dataplane.IPv4:
		return unix.AF_INET
	case dataplane.IPv6:
		return unix.AF_INET6
	}
	return unix.AF_UNSPEC
}

// entry writes one entry of a set of type t.
func (w *attributeWriter) entry(t SetType, e *SetEntry, line uint32) {
	data := w.open(nl.IPSET_ATTR_DATA | nl.NLA_F_NESTED)
	if t != BitmapPort {
		w.ip(nl.IPSET_ATTR_IP, e.Net.Addr())
	}
	if t == HashNet {
		w.bytes(nl.IPSET_ATTR_CIDR, byte(e.Net.Bits()))
	}
	if t == HashIPPortIP {
		w.ip(nl.IPSET_ATTR_IP2, e.Second)
	}
	if t == HashIPPortNet {
		w.ip(nl.IPSET_ATTR_IP2, e.SecondNet.Addr())
		w.bytes(nl.IPSET_ATTR_CIDR2, byte(e.SecondNet.Bits()))
	}
	if t.hasPort() {
		w.bytes(nl.IPSET_ATTR_PROTO, byte(e.Protocol))
	}
	if t.hasPort() || t == BitmapPort {
		w.uint16(nl.IPSET_ATTR_PORT, e.Port)
	}
	if e.Timeout != 0 {
		w.uint32(nl.IPSET_ATTR_TIMEOUT, e.Timeout)
	}
	if e.MarkMask != 0 {
		w.uint64(nl.IPSET_ATTR_SKBMARK, uint64(e.Mark)<<32|uint64(e.MarkMask))
	}
	w.uint32(nl.IPSET_ATTR_LINENO, line)
	w.close(data)
}

func (w *attributeWriter) ip(kind uint16, a netip.Addr) {
	nest := w.open(kind | nl.NLA_F_NESTED)
	version := uint16(nl.IPSET_ATTR_IPADDR_IPV6)
	if a.Is4() {
		version = nl.IPSET_ATTR_IPADDR_IPV4
	}
	w.bytes(version|nl.NLA_F_NET_BYTEORDER, a.AsSlice()...)
	w.close(nest)
}

// header reads what the kernel tells of a set besides its entries.
func (s *Set) header(data []byte) {
	for kind, v := range attributes(data) {
		switch kind {
		case nl.IPSET_ATTR_MAXELEM:
			s.MaxEntries = be32(v)
		case nl.IPSET_ATTR_TIMEOUT:
			s.Expires, s.Timeout = true, be32(v)
		case nl.IPSET_ATTR_CADT_FLAGS:
			s.Marks = be32(v)&nl.IPSET_FLAG_WITH_SKBINFO != 0
		case nl.IPSET_ATTR_PORT_FROM:
			s.FirstPort = be16(v)
		case nl.IPSET_ATTR_PORT_TO:
			s.LastPort = be16(v)
		}
	}
}

func (e *SetEntry) read(t SetType, data []byte) {
	var addr netip.Addr
	bits, secondBits := -1, -1
	for kind, v := range attributes(data) {
		switch kind {
		case nl.IPSET_ATTR_IP:
			addr = ipOf(v)
		case nl.IPSET_ATTR_CIDR:
			bits = int(firstByte(v))
		case nl.IPSET_ATTR_IP2:
			e.Second = ipOf(v)
		case nl.IPSET_ATTR_CIDR2:
			secondBits = int(firstByte(v))
		case nl.IPSET_ATTR_PROTO:
			e.Protocol = dataplane.Protocol(firstByte(v))
		case nl.IPSET_ATTR_PORT:
			e.Port = be16(v)
		case nl.IPSET_ATTR_TIMEOUT:
			e.Timeout = be32(v)
		case nl.IPSET_ATTR_SKBMARK:
			if len(v) == 8 {
				e.Mark, e.MarkMask = be32(v[:4]), be32(v[4:])
			}
		}
	}
	if t == HashIPPortNet {
		if secondBits < 0 { // the kernel leaves out what is as long as can be
			secondBits = e.Second.BitLen()
		}
		e.SecondNet, e.Second = netip.PrefixFrom(e.Second, secondBits), netip.Addr{}
	}
	if !addr.IsValid() {
		return
	}
	if bits < 0 {
		bits = addr.BitLen()
	}
	e.Net = netip.PrefixFrom(addr, bits)
}

func ipOf(nest []byte) netip.Addr {
	for _, v := range attributes(nest) {
		a, _ := netip.AddrFromSlice(v)
		return a
	}
	return netip.Addr{}
}

func firstByte(b []byte) byte {
	if len(b) == 0 {
		return 0
	}
	return b[0]
}

func be16(b []byte) uint16 {
	if len(b) < 2 {
		return 0
	}
	return binary.BigEndian.Uint16(b)
}

func be32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}
