package kernel

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/portway/portway/modules/dataplane"
)

// table is /proc/net/ip_vs: all virtual servers with their real servers, in one
// reading. It does not tell flags and thresholds. One record is a virtual server
// with all of its real servers; of a table that changes while it is read,
// records may be missing or twice, but are whole.
type table struct {
	file *os.File
}

// openTable opens the table of the calling thread's network namespace. A kernel
// without it has a file of nil.
func openTable() table {
	file, err := os.Open("/proc/thread-self/net/ip_vs")
	if err != nil {
		return table{}
	}
	return table{file}
}

func (t table) close() error {
	if t.file == nil {
		return nil
	}
	return t.file.Close()
}

// reals returns the real servers by virtual server, for one family. What cannot
// be read is left out: it can be asked for by netlink.
func (t table) reals(f dataplane.Family) map[Key][]Real {
	if t.file == nil {
		return nil
	}
	if _, err := t.file.Seek(0, io.SeekStart); err != nil {
		return nil
	}
	return parseTable(t.file, f)
}

func parseTable(r io.Reader, f dataplane.Family) map[Key][]Real {
	found := make(map[Key][]Real)
	var reals []Real
	var key Key
	var within bool // in a record that is read
	finish := func() {
		if within {
			found[key] = reals
		}
		reals, within = nil, false
	}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		switch {
		case len(words) < 2:
		case words[0] != "->":
			finish()
			var err error
			key, err = tableKey(words)
			within = err == nil && key.Family() == f
		case within:
			real, err := tableReal(words)
			within = err == nil
			reals = append(reals, real)
		}
	}
	if lines.Err() == nil {
		finish()
	}
	return found
}

// tableKey reads a line such as "TCP  0A600001:0050 rr".
func tableKey(words []string) (k Key, err error) {
	if k.Protocol, err = dataplane.ParseProtocol(words[0]); err != nil {
		return k, err
	}
	addr, err := tableAddr(words[1])
	k.Addr, k.Port = addr.Addr(), addr.Port()
	return k, err
}

var forwards = map[string]Forward{"Masq": Masquerade, "Local": LocalNode, "Tunnel": Tunnel, "Route": Route}

// tableReal reads a line such as "  -> 0A010007:1F90 Masq 1 0 0".
func tableReal(words []string) (r Real, err error) {
	if len(words) < 6 {
		return r, fmt.Errorf("%q: want six words", words)
	}
	if r.Addr, err = tableAddr(words[1]); err != nil {
		return r, err
	}
	forward, ok := forwards[words[2]]
	if !ok {
		return r, fmt.Errorf("%q: unknown way to forward", words[2])
	}
	r.Forward = forward
	for i, n := range []*int{&r.Weight, &r.Active, &r.Inactive} {
		if *n, err = strconv.Atoi(words[3+i]); err != nil {
			return r, err
		}
	}
	return r, nil
}

// tableAddr reads an address and port, such as "0A600001:0050" and
// "[fd00:0000:0000:0000:0000:0000:0000:0001]:0050".
func tableAddr(text string) (netip.AddrPort, error) {
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return netip.AddrPort{}, fmt.Errorf("%q has no port", text)
	}
	port, err := strconv.ParseUint(text[i+1:], 16, 16)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if inner, ok := strings.CutPrefix(text[:i], "["); ok {
		addr, err := netip.ParseAddr(strings.TrimSuffix(inner, "]"))
		return netip.AddrPortFrom(addr, uint16(port)), err
	}
	raw, err := hex.DecodeString(text[:i])
	if err != nil {
		return netip.AddrPort{}, err
	}
	addr, ok := netip.AddrFromSlice(raw)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("%q is no address", text)
	}
	return netip.AddrPortFrom(addr, uint16(port)), nil
}

// sortReals puts real servers into the order of their addresses.
func sortReals(reals []Real) []Real {
	slices.SortFunc(reals, func(a, b Real) int { return a.Addr.Compare(b.Addr) })
	return slices.CompactFunc(reals, func(a, b Real) bool { return a.Addr == b.Addr })
}
