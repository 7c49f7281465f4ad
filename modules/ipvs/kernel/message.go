package kernel

import (
	"encoding/binary"
	"iter"

	"golang.org/x/sys/unix"
)

// message builds netlink messages, one after the other, in one buffer.
type message struct {
	buf   []byte
	start int // of the last message
}

// add adds a message. Its body, which includes the header of the protocol
// above netlink, is what write writes; write returns its kind and flags.
func (m *message) add(seq uint32, write func(m *message) (kind, flags uint16)) {
	m.start = len(m.buf)
	m.buf = append(m.buf, make([]byte, unix.SizeofNlMsghdr)...)
	kind, flags := write(m)
	header := m.buf[m.start:]
	binary.NativeEndian.PutUint32(header, uint32(len(header)))
	binary.NativeEndian.PutUint16(header[4:], kind)
	binary.NativeEndian.PutUint16(header[6:], flags|unix.NLM_F_REQUEST)
	binary.NativeEndian.PutUint32(header[8:], seq)
}

// acknowledge asks for an answer to the last message.
func (m *message) acknowledge() {
	flags := m.buf[m.start+6:]
	binary.NativeEndian.PutUint16(flags, binary.NativeEndian.Uint16(flags)|unix.NLM_F_ACK)
}

// open begins an attribute and returns what close wants.
func (m *message) open(kind uint16) int {
	at := len(m.buf)
	m.buf = binary.NativeEndian.AppendUint16(m.buf, 0)
	m.buf = binary.NativeEndian.AppendUint16(m.buf, kind)
	return at
}

func (m *message) close(at int) {
	binary.NativeEndian.PutUint16(m.buf[at:], uint16(len(m.buf)-at))
	for len(m.buf)%unix.NLMSG_ALIGNTO != 0 {
		m.buf = append(m.buf, 0)
	}
}

func (m *message) bytes(kind uint16, value []byte) {
	at := m.open(kind)
	m.buf = append(m.buf, value...)
	m.close(at)
}

func (m *message) text(kind uint16, value string) {
	at := m.open(kind)
	m.buf = append(append(m.buf, value...), 0)
	m.close(at)
}

func (m *message) uint16(kind, value uint16) {
	at := m.open(kind)
	m.buf = binary.NativeEndian.AppendUint16(m.buf, value)
	m.close(at)
}

func (m *message) uint32(kind uint16, values ...uint32) {
	at := m.open(kind)
	for _, v := range values {
		m.buf = binary.NativeEndian.AppendUint32(m.buf, v)
	}
	m.close(at)
}

// port writes a port in the byte order of the network.
func (m *message) port(kind, value uint16) {
	at := m.open(kind)
	m.buf = binary.BigEndian.AppendUint16(m.buf, value)
	m.close(at)
}

// attributes yields the attributes of a message by kind, without the flags
// that some kinds carry. It stops where the lengths make no sense.
func attributes(data []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(data) >= unix.SizeofNlAttr {
			size := int(binary.NativeEndian.Uint16(data))
			kind := binary.NativeEndian.Uint16(data[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
			if size < unix.SizeofNlAttr || size > len(data) || !yield(kind, data[unix.SizeofNlAttr:size]) {
				return
			}
			data = data[min(len(data), align(size)):]
		}
	}
}

// nested yields the attributes inside the first attribute of a kind.
func nested(data []byte, outer uint16) iter.Seq2[uint16, []byte] {
	for kind, inner := range attributes(data) {
		if kind == outer {
			return attributes(inner)
		}
	}
	return attributes(nil)
}

func align(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }

// answer is one message of the kernel.
type answer struct {
	kind, flags uint16
	seq         uint32
	body        []byte
}

// answers yields the messages of one datagram.
func answers(data []byte) iter.Seq[answer] {
	return func(yield func(answer) bool) {
		for len(data) >= unix.SizeofNlMsghdr {
			size := int(binary.NativeEndian.Uint32(data))
			if size < unix.SizeofNlMsghdr || size > len(data) {
				return
			}
			a := answer{
				kind:  binary.NativeEndian.Uint16(data[4:]),
				flags: binary.NativeEndian.Uint16(data[6:]),
				seq:   binary.NativeEndian.Uint32(data[8:]),
				body:  data[unix.SizeofNlMsghdr:size],
			}
			if !yield(a) {
				return
			}
			data = data[min(len(data), align(size)):]
		}
	}
}

// errno is the result that an acknowledgement, or the end of a dump, carries;
// 0 is success.
func (a answer) errno() unix.Errno {
	if len(a.body) < 4 {
		return 0
	}
	return unix.Errno(-int32(binary.NativeEndian.Uint32(a.body)))
}

// What follows reads values, which are 0 if they are cut off.

func toUint16(b []byte) uint16 {
	if len(b) < 2 {
		return 0
	}
	return binary.NativeEndian.Uint16(b)
}

func toUint32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

func toPort(b []byte) uint16 {
	if len(b) < 2 {
		return 0
	}
	return binary.BigEndian.Uint16(b)
}
