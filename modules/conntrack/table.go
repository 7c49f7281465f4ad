package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/portway/portway/modules/dataplane"
)

// Messages and attributes of ctnetlink, from linux/netfilter/nfnetlink_conntrack.h.
const (
	msgNew    = unix.NFNL_SUBSYS_CTNETLINK << 8
	msgGet    = unix.NFNL_SUBSYS_CTNETLINK<<8 + 1
	msgDelete = unix.NFNL_SUBSYS_CTNETLINK<<8 + 2

	attrTupleOrig  = 1
	attrTupleReply = 2
	attrID         = 12
	attrZone       = 18
	attrFilter     = 25

	tupleIP    = 1
	tupleProto = 2
	tupleZone  = 3

	ipv4Src, ipv4Dst, ipv6Src, ipv6Dst = 1, 2, 3, 4
	protoNum, protoSrcPort, protoDst   = 1, 2, 3

	filterOrigFlags = 1
	filterProtoNum  = 1 << 3 // CTA_FILTER_F_CTA_PROTO_NUM
)

// Table is the conntrack table of the network namespace in which its methods
// are called. It has no state.
type Table struct{}

var _ Flows = Table{}

// Dump implements [Flows]. The kernel picks the family, and since Linux 5.8 the
// protocol; before it sends all of them, and most are dropped here.
func (Table) Dump(ctx context.Context, f dataplane.Family, yield func(Entry) bool) error {
	s, err := newSocket()
	if err != nil {
		return fmt.Errorf("list %s UDP flows: %w", f, err)
	}
	defer s.close()
	if err := s.dump(ctx, f, yield); err != nil {
		return fmt.Errorf("list %s UDP flows: %w", f, err)
	}
	return ctx.Err()
}

// dump asks for the flows of a family and yields them as they come. The kernel
// produces them as they are read, so there is nothing to overflow.
func (s *socket) dump(ctx context.Context, f dataplane.Family, yield func(Entry) bool) error {
	if err := s.send(dumpRequest(f)); err != nil {
		return err
	}
	var refused unix.Errno
	err := s.receive(func(r reply) bool {
		switch r.kind {
		case unix.NLMSG_DONE, unix.NLMSG_ERROR:
			refused = r.errno()
			return true
		case msgNew:
			e, ok := parseEntry(r.body)
			return ok && e.Protocol == dataplane.UDP && !yield(e) || ctx.Err() != nil
		}
		return false
	})
	if refused != 0 {
		return refused
	}
	return err
}

// Delete implements [Flows].
func (Table) Delete(ctx context.Context, entries []Entry) (int, error) {
	if len(entries) == 0 {
		return 0, nil
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s, err := newSocket()
	if err != nil {
		return 0, fmt.Errorf("delete UDP flows: %w", err)
	}
	defer s.close()
	if err := s.send(deleteRequests(entries)); err != nil {
		return 0, fmt.Errorf("delete UDP flows: %w", err)
	}
	deleted := 0
	var failed error
	err = s.receive(func(r reply) bool {
		if r.kind != unix.NLMSG_ERROR || int(r.seq) >= len(entries) {
			return false
		}
		switch errno := r.errno(); errno {
		case 0:
			deleted++
		case unix.ENOENT: // gone by itself, or replaced by a newer one
		default:
			failed = errors.Join(failed, fmt.Errorf("delete %s: %w", entries[r.seq], errno))
		}
		return int(r.seq) == len(entries)-1
	})
	if err != nil {
		return deleted, fmt.Errorf("delete UDP flows: %w", err)
	}
	return deleted, failed
}

func dumpRequest(f dataplane.Family) []byte {
	return message(nil, msgGet, unix.NLM_F_REQUEST|unix.NLM_F_DUMP, 0, func(b []byte) []byte {
		b = append(b, nfgenmsg(f)...)
		b = nested(b, attrTupleOrig, func(b []byte) []byte {
			return nested(b, tupleProto, func(b []byte) []byte {
				return attr(b, protoNum, unix.IPPROTO_UDP)
			})
		})
		return nested(b, attrFilter, func(b []byte) []byte {
			return attr(b, filterOrigFlags, binary.NativeEndian.AppendUint32(nil, filterProtoNum)...)
		})
	})
}

// deleteRequests asks for all entries in one packet; sequence numbers are
// indices. An entry is named by its reply tuple and its ID, which covers the
// original tuple. So one that took its place meanwhile and leads to another
// endpoint is not mistaken for it, even if it lies at the same place in memory.
func deleteRequests(entries []Entry) []byte {
	var b []byte
	for i, e := range entries {
		b = message(b, msgDelete, unix.NLM_F_REQUEST|unix.NLM_F_ACK, uint32(i), func(b []byte) []byte {
			b = append(b, nfgenmsg(dataplane.FamilyOf(e.Reply.Src.Addr()))...)
			b = nested(b, attrTupleReply, func(b []byte) []byte { return appendTuple(b, e.Reply, e.Protocol) })
			if e.ReplyZone != 0 {
				b = attr(b, attrZone, binary.BigEndian.AppendUint16(nil, e.ReplyZone)...)
			}
			return attr(b, attrID, binary.BigEndian.AppendUint32(nil, e.ID)...)
		})
	}
	return b
}

func nfgenmsg(f dataplane.Family) []byte {
	family := byte(unix.AF_INET)
	if f == dataplane.IPv6 {
		family = unix.AF_INET6
	}
	return []byte{family, unix.NFNETLINK_V0, 0, 0}
}

func appendTuple(b []byte, t Tuple, p dataplane.Protocol) []byte {
	src, dst := uint16(ipv4Src), uint16(ipv4Dst)
	if t.Src.Addr().Is6() {
		src, dst = ipv6Src, ipv6Dst
	}
	b = nested(b, tupleIP, func(b []byte) []byte {
		b = attr(b, src, t.Src.Addr().AsSlice()...)
		return attr(b, dst, t.Dst.Addr().AsSlice()...)
	})
	return nested(b, tupleProto, func(b []byte) []byte {
		b = attr(b, protoNum, byte(p))
		b = attr(b, protoSrcPort, binary.BigEndian.AppendUint16(nil, t.Src.Port())...)
		return attr(b, protoDst, binary.BigEndian.AppendUint16(nil, t.Dst.Port())...)
	})
}

// parseEntry reads an entry and tells whether it had both tuples.
func parseEntry(b []byte) (Entry, bool) {
	if len(b) < len(nfgenmsg(0)) {
		return Entry{}, false
	}
	var e Entry
	var orig, reply bool
	attrs(b[len(nfgenmsg(0)):], func(kind uint16, v []byte) {
		switch kind {
		case attrTupleOrig:
			// A zone that counts in one direction only is in its tuple.
			orig = e.parseTuple(&e.Orig, v, &e.Zone)
		case attrTupleReply:
			reply = e.parseTuple(&e.Reply, v, &e.ReplyZone)
		case attrZone:
			e.Zone, e.ReplyZone = uint16Of(v), uint16Of(v)
		case attrID:
			if len(v) == 4 {
				e.ID = binary.BigEndian.Uint32(v)
			}
		}
	})
	return e, orig && reply
}

func (e *Entry) parseTuple(t *Tuple, b []byte, zone *uint16) bool {
	var src, dst netip.Addr
	var srcPort, dstPort uint16
	attrs(b, func(kind uint16, v []byte) {
		switch kind {
		case tupleIP:
			attrs(v, func(kind uint16, v []byte) {
				switch kind {
				case ipv4Src, ipv6Src:
					src = addrOf(v)
				case ipv4Dst, ipv6Dst:
					dst = addrOf(v)
				}
			})
		case tupleProto:
			e.Protocol, srcPort, dstPort = parseProto(v)
		case tupleZone:
			*zone = uint16Of(v)
		}
	})
	*t = Tuple{netip.AddrPortFrom(src, srcPort), netip.AddrPortFrom(dst, dstPort)}
	return src.IsValid() && dst.IsValid()
}

func parseProto(b []byte) (p dataplane.Protocol, srcPort, dstPort uint16) {
	attrs(b, func(kind uint16, v []byte) {
		switch kind {
		case protoNum:
			if len(v) == 1 {
				p = dataplane.Protocol(v[0])
			}
		case protoSrcPort:
			srcPort = uint16Of(v)
		case protoDst:
			dstPort = uint16Of(v)
		}
	})
	return p, srcPort, dstPort
}

// uint16Of reads a number in network byte order.
func uint16Of(b []byte) uint16 {
	if len(b) != 2 {
		return 0
	}
	return binary.BigEndian.Uint16(b)
}
