package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// script plays the kernel: for each datagram that a socket sends it gives the
// datagrams of one answer.
func script(t *testing.T, answers ...func(asked []answer) [][]byte) *socket {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	played := make(chan error, 1)
	go func() { played <- play(fds[1], answers) }()
	s := newSocket(fds[0])
	t.Cleanup(func() {
		if err := errors.Join(s.close(), <-played, unix.Close(fds[1])); err != nil {
			t.Error(err)
		}
	})
	return s
}

func play(fd int, script []func([]answer) [][]byte) error {
	buffer := make([]byte, bufferSize)
	for _, next := range script {
		n, err := unix.Read(fd, buffer)
		if err != nil || n == 0 {
			return errors.Join(err, errors.New("the script goes on"))
		}
		for _, datagram := range next(slices.Collect(answers(buffer[:n]))) {
			if _, err := unix.Write(fd, datagram); err != nil {
				return err
			}
		}
	}
	if n, err := unix.Read(fd, buffer); err != nil || n > 0 {
		return errors.Join(err, errors.New("asked once more"))
	}
	return nil
}

// reply is a message of the kernel.
func reply(kind, flags uint16, seq uint32, body ...byte) []byte {
	var m message
	m.add(seq, func(m *message) (uint16, uint16) {
		m.buf = append(m.buf, body...)
		return kind, flags
	})
	return m.buf
}

func result(seq uint32, errno unix.Errno) []byte {
	return reply(unix.NLMSG_ERROR, 0, seq, binary.NativeEndian.AppendUint32(nil, uint32(-int32(errno)))...)
}

func done(seq uint32, flags uint16) []byte {
	return reply(unix.NLMSG_DONE, unix.NLM_F_MULTI|flags, seq, 0, 0, 0, 0)
}

func item(seq uint32, flags uint16, value byte) []byte {
	return reply(99, unix.NLM_F_MULTI|flags, seq, value, 0, 0, 0)
}

func nothing(*message) (kind, flags uint16) { return 99, 0 }

func TestDumpInterrupted(t *testing.T) {
	s := script(t,
		func(asked []answer) [][]byte {
			n := asked[0].seq
			return [][]byte{item(n, 0, 1), item(n, unix.NLM_F_DUMP_INTR, 2), done(n, 0)}
		},
		func(asked []answer) [][]byte {
			n := asked[0].seq
			return [][]byte{item(n, 0, 1), done(n, unix.NLM_F_DUMP_INTR)}
		},
		func(asked []answer) [][]byte {
			n := asked[0].seq
			both := slices.Concat(item(n, 0, 3), item(n, 0, 4))
			return [][]byte{item(n-1, 0, 9), both, done(n, 0)} // and one of an earlier question
		})
	var got []byte
	err := s.dump(t.Context(), nothing, func() { got = nil }, func(body []byte) { got = append(got, body[0]) })
	if want := []byte{3, 4}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}

func TestDumpAlwaysInterrupted(t *testing.T) {
	s := script(t, slices.Repeat([]func([]answer) [][]byte{func(asked []answer) [][]byte {
		return [][]byte{done(asked[0].seq, unix.NLM_F_DUMP_INTR)}
	}}, interruptions)...)
	err := s.dump(t.Context(), nothing, func() {}, func([]byte) {})
	if !errors.Is(err, errInterrupted) {
		t.Errorf("got %v", err)
	}
}

func TestDumpFails(t *testing.T) {
	s := script(t, func(asked []answer) [][]byte { return [][]byte{result(asked[0].seq, unix.EBUSY)} })
	if err := s.dump(t.Context(), nothing, func() {}, func([]byte) {}); !errors.Is(err, unix.EBUSY) {
		t.Errorf("got %v", err)
	}
}

// TestChange: messages go in batches, only the last of each asks for an
// answer, and a refusal finds the message that it is about.
func TestChange(t *testing.T) {
	const n = 2*perBatch + 1
	batch := func(size int, refused ...int) func([]answer) [][]byte {
		return func(asked []answer) [][]byte {
			if len(asked) != size {
				t.Errorf("got %d messages, want %d", len(asked), size)
			}
			for i, a := range asked {
				if wants := a.flags&unix.NLM_F_ACK != 0; wants != (i == size-1) {
					t.Errorf("message %d of %d: wants an answer: %v", i, size, wants)
				}
			}
			out := [][]byte{result(asked[0].seq-1, unix.EIO)} // of an earlier batch
			for _, i := range refused {
				out = append(out, result(asked[i].seq, unix.EEXIST))
			}
			if !slices.Contains(refused, size-1) {
				out = append(out, result(asked[size-1].seq, 0))
			}
			return out
		}
	}
	s := script(t, batch(perBatch, 0, 7, perBatch-1), batch(perBatch), batch(1, 0))
	var got []int
	err := s.change(t.Context(), n, func(*message, int) (uint16, uint16) { return 99, 0 }, func(i int, errno unix.Errno) {
		if errno != unix.EEXIST {
			t.Errorf("%d: got %v", i, errno)
		}
		got = append(got, i)
	})
	if want := []int{0, 7, perBatch - 1, 2 * perBatch}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}

func TestCancelled(t *testing.T) {
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	s := script(t, func(asked []answer) [][]byte {
		cancel(why)
		return [][]byte{result(asked[len(asked)-1].seq, 0)}
	})
	err := s.change(ctx, 2*perBatch, func(*message, int) (uint16, uint16) { return 99, 0 }, func(int, unix.Errno) {})
	if !errors.Is(err, why) {
		t.Errorf("change: got %v", err)
	}
	if err := s.dump(ctx, nothing, func() {}, func([]byte) {}); !errors.Is(err, why) {
		t.Errorf("dump: got %v", err)
	}
}

// FuzzAnswers: whatever arrives is read without a panic.
func FuzzAnswers(f *testing.F) {
	var m message
	m.add(1, func(m *message) (uint16, uint16) {
		m.op(&Op{Verb: AddReal, Real: sampleReal, Key: sampleKey})
		return 20, 0
	})
	f.Add(m.buf)
	f.Add(result(1, unix.ENOENT))
	f.Add([]byte{})
	f.Fuzz(func(_ *testing.T, data []byte) {
		for a := range answers(data) {
			a.errno()
			serverOf(a.body)
			realOf(a.body, 4)
			timeoutsOf(a.body)
		}
	})
}
