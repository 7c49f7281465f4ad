package conntrack

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/portway/portway/modules/dataplane"
)

// TestDumpMemoryDoesNotGrow reads a million entries off a socket, as the kernel
// sends them.
func TestDumpMemoryDoesNotGrow(t *testing.T) {
	const entries, perPacket = 1_000_000, 200
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := &socket{fd: fds[0], buf: make([]byte, receiveSize)}
	defer s.close()
	one := entryMessage(sample())
	sent := make(chan error, 1)
	go func() {
		defer unix.Close(fds[1])
		if _, err := unix.Read(fds[1], make([]byte, receiveSize)); err != nil { // the request
			sent <- err
			return
		}
		packet := bytes.Repeat(one, perPacket)
		for range entries / perPacket {
			if _, err := unix.Write(fds[1], packet); err != nil {
				sent <- err
				return
			}
		}
		_, err := unix.Write(fds[1], message(nil, unix.NLMSG_DONE, 0, 0, func(b []byte) []byte { return append(b, 0, 0, 0, 0) }))
		sent <- err
	}()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	seen := 0
	err = s.dump(t.Context(), dataplane.IPv4, func(e Entry) bool {
		if e != sample() {
			t.Errorf("read %+v", e)
			return false
		}
		seen++
		return true
	})
	runtime.ReadMemStats(&after)
	if err != nil || <-sent != nil || seen != entries {
		t.Fatalf("read %d entries: %v", seen, err)
	}
	// All that was ever allocated, on both ends, garbage too.
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 1<<20 {
		t.Errorf("allocated %d bytes", grown)
	}
}

func sample() Entry {
	a := netip.MustParseAddrPort
	return Entry{
		Protocol: dataplane.UDP, Zone: 3, ReplyZone: 3, ID: 77,
		Orig:  Tuple{a("10.244.1.2:40000"), a("10.96.0.10:53")},
		Reply: Tuple{a("10.244.1.11:5353"), a("10.244.1.2:40000")},
	}
}

// entryMessage is an entry as the kernel sends it.
func entryMessage(e Entry) []byte {
	return message(nil, msgNew, unix.NLM_F_MULTI, 0, func(b []byte) []byte {
		b = append(b, nfgenmsg(dataplane.FamilyOf(e.Orig.Src.Addr()))...)
		b = nested(b, attrTupleOrig, func(b []byte) []byte { return appendTuple(b, e.Orig, e.Protocol) })
		b = nested(b, attrTupleReply, func(b []byte) []byte { return appendTuple(b, e.Reply, e.Protocol) })
		b = attr(b, attrZone, binary.BigEndian.AppendUint16(nil, e.Zone)...)
		return attr(b, attrID, binary.BigEndian.AppendUint32(nil, e.ID)...)
	})
}

// FuzzParseEntry: no bytes make it fail, and what it reads it can write.
func FuzzParseEntry(f *testing.F) {
	six := sample()
	six.Orig.Src = netip.MustParseAddrPort("[fd00::1]:1")
	six.Orig.Dst = netip.MustParseAddrPort("[fd00::2]:2")
	six.Reply = Tuple{six.Orig.Dst, six.Orig.Src}
	for _, e := range []Entry{sample(), six} {
		f.Add(entryMessage(e)[unix.SizeofNlMsghdr:])
	}
	f.Add([]byte{2, 0, 0, 0, 3, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		e, ok := parseEntry(b)
		if !ok || e.Orig.Src.Addr().Is4() != e.Orig.Dst.Addr().Is4() || e.Reply.Src.Addr().Is4() != e.Reply.Dst.Addr().Is4() {
			return
		}
		e.Zone = e.ReplyZone // the two are told by one attribute
		if again, ok := parseEntry(entryMessage(e)[unix.SizeofNlMsghdr:]); !ok || again != e {
			t.Errorf("%+v was written and read as %+v", e, again)
		}
	})
}

// TestBrokenMessages: a length that does not add up is an error, not an endless
// loop.
func TestBrokenMessages(t *testing.T) {
	for name, size := range map[string]uint32{"too short": 3, "too long": 4000} {
		t.Run(name, func(t *testing.T) {
			fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fds[1])
			s := &socket{fd: fds[0], buf: make([]byte, receiveSize)}
			defer s.close()
			packet := make([]byte, 32)
			binary.NativeEndian.PutUint32(packet, size)
			if _, err := unix.Write(fds[1], packet); err != nil {
				t.Fatal(err)
			}
			if err := s.receive(func(reply) bool { return false }); err == nil {
				t.Error("no error")
			}
		})
	}
}
