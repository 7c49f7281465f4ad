package netfilter

import (
	"encoding/binary"
	"iter"

	"github.com/vishvananda/netlink/nl"
)

// attributes goes through netlink attributes. The library's own way is a
// goroutine and a channel for each nest, too slow for thousands of sets.
// Whatever is cut off ends it.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= 4 {
			size := int(binary.NativeEndian.Uint16(b))
			kind := binary.NativeEndian.Uint16(b[2:]) &^ (nl.NLA_F_NESTED | nl.NLA_F_NET_BYTEORDER)
			if size < 4 || size > len(b) || !yield(kind, b[4:size]) {
				return
			}
			b = b[min(len(b), (size+3)&^3):]
		}
	}
}

// attributeWriter builds netlink attributes in one buffer.
type attributeWriter struct{ buf []byte }

// open begins an attribute and returns what close needs.
func (w *attributeWriter) open(kind uint16) int {
	start := len(w.buf)
	w.buf = append(w.buf, 0, 0, 0, 0)
	binary.NativeEndian.PutUint16(w.buf[start+2:], kind)
	return start
}

func (w *attributeWriter) close(start int) {
	binary.NativeEndian.PutUint16(w.buf[start:], uint16(len(w.buf)-start))
	for len(w.buf)%4 != 0 {
		w.buf = append(w.buf, 0)
	}
}

func (w *attributeWriter) bytes(kind uint16, value ...byte) {
	start := w.open(kind)
	w.buf = append(w.buf, value...)
	w.close(start)
}

func (w *attributeWriter) text(kind uint16, s string) {
	start := w.open(kind)
	w.buf = append(append(w.buf, s...), 0)
	w.close(start)
}

func (w *attributeWriter) uint16(kind uint16, v uint16) {
	start := w.open(kind | nl.NLA_F_NET_BYTEORDER)
	w.buf = binary.BigEndian.AppendUint16(w.buf, v)
	w.close(start)
}

func (w *attributeWriter) uint32(kind uint16, v uint32) {
	start := w.open(kind | nl.NLA_F_NET_BYTEORDER)
	w.buf = binary.BigEndian.AppendUint32(w.buf, v)
	w.close(start)
}

func (w *attributeWriter) uint64(kind uint16, v uint64) {
	start := w.open(kind | nl.NLA_F_NET_BYTEORDER)
	w.buf = binary.BigEndian.AppendUint64(w.buf, v)
	w.close(start)
}
