package rig

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Watch is what comes in at a host: the first packets of flows, whether or not
// their sender ever gets the answer. The answers of another node's endpoint to
// an outside client, say, do not pass the node that has translated the request,
// and the client does not know them for what they are.
type Watch struct {
	host string

	mu      sync.Mutex
	seen    map[Sighting]bool
	changed chan struct{} // closed when seen has changed
}

// Watch records what comes in at the host until the test ends.
func (h *Host) Watch(tb TB) *Watch {
	tb.Helper()
	var packets *os.File
	err := h.onNetwork(func() error {
		all := int(htons(unix.ETH_P_ALL))
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, all)
		if err == nil {
			packets = os.NewFile(uintptr(fd), "packets")
		}
		return err
	})
	if err != nil {
		tb.Fatalf("%s: open packet socket: %v", h.Name, err)
	}
	w := &Watch{host: h.Name, seen: make(map[Sighting]bool), changed: make(chan struct{})}
	var wg sync.WaitGroup
	wg.Go(func() { w.read(packets) })
	tb.Cleanup(func() {
		packets.Close()
		wg.Wait()
	})
	return w
}

func htons(n uint16) uint16 { return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n)) }

func (w *Watch) read(packets *os.File) {
	packet := make([]byte, 256)
	for {
		n, err := packets.Read(packet)
		if err != nil {
			return // closed
		}
		if source, to, ok := opening(packet[:n]); ok {
			w.add(Sighting{w.host, source, to})
		}
	}
}

func (w *Watch) add(s Sighting) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.seen[s] {
		w.seen[s] = true
		close(w.changed)
		w.changed = make(chan struct{})
	}
}

// Await waits for a packet that match wants.
func (w *Watch) Await(ctx context.Context, match func(Sighting) bool) (Sighting, error) {
	for {
		s, ok, changed := w.find(match)
		if ok {
			return s, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return s, fmt.Errorf("%s: no such packet: %w", w.host, ctx.Err())
		}
	}
}

func (w *Watch) find(match func(Sighting) bool) (s Sighting, ok bool, changed <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for s := range w.seen {
		if match(s) {
			return s, true, w.changed
		}
	}
	return s, false, w.changed
}

// opening reads the ends of a packet that may be the first of a TCP or UDP flow.
func opening(p []byte) (source, to netip.AddrPort, ok bool) {
	var from, dest netip.Addr
	var proto byte
	switch {
	case len(p) >= 20 && p[0]>>4 == 4:
		from, dest, proto = netip.AddrFrom4([4]byte(p[12:16])), netip.AddrFrom4([4]byte(p[16:20])), p[9]
		p = p[min(len(p), int(p[0]&0xf)*4):]
	case len(p) >= 40 && p[0]>>4 == 6: // nobody in a rig sends extension headers
		from, dest, proto = netip.AddrFrom16([16]byte(p[8:24])), netip.AddrFrom16([16]byte(p[24:40])), p[6]
		p = p[40:]
	}
	const synOnly, flags = 0x02, 0x17
	switch {
	case proto == unix.IPPROTO_TCP && len(p) >= 20 && p[13]&flags == synOnly:
	case proto == unix.IPPROTO_UDP && len(p) >= 8:
	default:
		return source, to, false
	}
	return netip.AddrPortFrom(from, binary.BigEndian.Uint16(p)), netip.AddrPortFrom(dest, binary.BigEndian.Uint16(p[2:])), true
}
