package netfilter

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Host is the kernel of the network namespace that this process is in. It
// runs one program at a time.
type Host struct {
	backend  Backend
	lockWait time.Duration

	mu    sync.Mutex
	input []byte // reused, see restore
}

// mostKept bounds what is kept to be reused: a change is small, and only a first
// start writes as much as the rules of all Services.
const mostKept = 64 << 10

// NewHost gives access to the kernel through a back end. The xtables lock,
// which only iptables-legacy takes, is waited for no longer than lockWait,
// rounded up to seconds.
func NewHost(b Backend, lockWait time.Duration) *Host {
	return &Host{backend: b, lockWait: lockWait}
}

// Backend is the back end in use.
func (h *Host) Backend() Backend { return h.backend }

// Save has the rules printed and reads them meanwhile. A table that nobody has
// made has no chains, not even the kernel's own.
func (h *Host) Save(ctx context.Context, tables []Table, visit func(Table, Chain) error) error {
	return h.SaveUnknown(ctx, tables, nil, visit)
}

// SaveUnknown is Save without the chains that are known: their rules are not parsed,
// which takes longer than to print them. known is not asked about the kernel's own
// chains, nor about empty ones; nil knows none.
func (h *Host) SaveUnknown(ctx context.Context, tables []Table, known Known, visit func(Table, Chain) error) error {
	made := slices.DeleteFunc(slices.Clone(tables), func(t Table) bool { return !h.backend.isMade(t) })
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.backend.listings(made) {
		err := h.list(ctx, l, func(t Table, chain string, rules []byte) bool {
			return !slices.Contains(made, t) || known != nil && known(t, chain, rules)
		}, func(t Table, c Chain) error {
			if !slices.Contains(made, t) {
				return nil
			}
			return visit(t, c)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// list runs one program that prints rules.
func (h *Host) list(parent context.Context, l listing, known Known, visit func(Table, Chain) error) error {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	cmd := exec.CommandContext(ctx, l.argv[0], l.argv[1:]...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("%s: %w", cmd, err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w", cmd, err)
	}
	var visitErr error
	readErr := readSave(l.asSaved(out), known, func(t Table, c Chain) error {
		visitErr = visit(t, c)
		return visitErr
	})
	if readErr != nil {
		cancel() // or it would wait for us to read on
	}
	waitErr := cmd.Wait()
	if visitErr != nil {
		return visitErr
	}
	return saveError(parent, cmd, readErr, waitErr, stderr.Bytes())
}

// saveError tells why a save failed: the context ended, the program said no,
// or its output made no sense. An output that ends early has one of the
// first two causes.
func saveError(ctx context.Context, cmd *exec.Cmd, readErr, waitErr error, stderr []byte) error {
	cause := context.Cause(ctx)
	switch {
	case readErr == nil && waitErr == nil:
		return nil
	case cause != nil:
		return fmt.Errorf("%s: %w", cmd, cause)
	case waitErr != nil && isIncompatible(stderr):
		return fmt.Errorf("%s: %w: %s", cmd, ErrIncompatible, firstLine(stderr))
	case waitErr != nil && len(stderr) > 0:
		return fmt.Errorf("%s: %w: %s", cmd, waitErr, firstLine(stderr))
	case readErr != nil:
		return fmt.Errorf("%s: %w", cmd, readErr)
	}
	return fmt.Errorf("%s: %w", cmd, waitErr)
}

func isIncompatible(stderr []byte) bool {
	return bytes.Contains(stderr, []byte("is incompatible")) || bytes.Contains(stderr, []byte("Parsing nftables rule failed"))
}

// Restore runs iptables-restore once.
func (h *Host) Restore(ctx context.Context, tx Transaction) error {
	if tx.IsEmpty() {
		return nil
	}
	return h.restore(ctx, tx)
}

// restore runs iptables-restore once. Its error tells of the first transaction;
// the others only undo it.
func (h *Host) restore(ctx context.Context, tx Transaction, then ...Transaction) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	input := tx.Append(h.input[:0])
	for i := range then {
		input = then[i].Append(input)
	}
	if cap(input) <= mostKept {
		h.input = input
	}
	// --wait-interval is left out: 1.8.8 and later poll every second part
	// themselves and complain about it.
	seconds := int((h.lockWait + time.Second - 1) / time.Second)
	cmd := exec.CommandContext(ctx, h.backend.command+"-restore", "--noflush", "-w", strconv.Itoa(max(seconds, 1)))
	cmd.Stdin = bytes.NewReader(input)
	output, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	e := &RestoreError{Command: cmd.String(), Err: err}
	if cause := context.Cause(ctx); cause != nil {
		e.Err = cause
	}
	e.explain(&tx, input, output)
	return e
}

func firstLine(b []byte) []byte {
	line, _, _ := bytes.Cut(bytes.TrimSpace(b), []byte("\n"))
	return line
}
