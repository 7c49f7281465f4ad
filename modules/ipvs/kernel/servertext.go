package kernel

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/portway/portway/modules/dataplane"
)

// WriteServers writes virtual servers as "ipvsadm -Sn" does.
func WriteServers(w io.Writer, list []VirtualServer) error {
	out := bufio.NewWriter(w)
	for i := range list {
		v := &list[i]
		name := serviceOption(v.Key.Protocol) + " " + netip.AddrPortFrom(v.Key.Addr, v.Key.Port).String()
		fmt.Fprintf(out, "-A %s %s\n", name, v.Server.options(v.Key.Family()))
		for _, r := range v.Reals {
			fmt.Fprintf(out, "-a %s -r %s %s -w %d\n", name, r.Addr, r.Forward.option(), r.Weight)
		}
	}
	return out.Flush()
}

func serviceOption(p dataplane.Protocol) string {
	switch p {
	case dataplane.UDP:
		return "-u"
	case dataplane.SCTP:
		return "--sctp-service"
	}
	return "-t"
}

// options are those of ipvsadm.
func (s Server) options(f dataplane.Family) string {
	text := "-s " + s.Scheduler
	if s.Persist > 0 {
		text += fmt.Sprintf(" -p %d", seconds(s.Persist))
	}
	switch {
	case s.PersistBits == 0:
	case f == dataplane.IPv6:
		text += fmt.Sprintf(" -M %d", s.PersistBits)
	default:
		mask := ^uint32(0) << (32 - s.PersistBits)
		text += fmt.Sprintf(" -M %s", netip.AddrFrom4([4]byte{byte(mask >> 24), byte(mask >> 16), byte(mask >> 8), byte(mask)}))
	}
	if s.Flags&OnePacket != 0 {
		text += " -o"
	}
	if hash := s.Flags &^ OnePacket; hash != 0 {
		text += " -b " + hash.String()
	}
	return text
}

func (f Forward) option() string {
	if f == LocalNode {
		return "-l"
	}
	return f.String()
}

// ReadServers reads what "ipvsadm -Sn" printed, and returns the virtual servers
// sorted. Those that a firewall mark selects are left out. How many connections
// a real server has is not known.
func ReadServers(r io.Reader) ([]VirtualServer, error) {
	in := serverReader{at: make(map[Key]int), reals: make(map[realKey]bool)}
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		if err := in.line(strings.Fields(lines.Text())); err != nil {
			return nil, fmt.Errorf("line %d of the saved virtual servers: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading the saved virtual servers: %w", err)
	}
	SortServers(in.list)
	return in.list, nil
}

type serverReader struct {
	list  []VirtualServer
	at    map[Key]int // in list
	reals map[realKey]bool
}

type realKey struct {
	server Key
	real   netip.AddrPort
}

func (in *serverReader) line(words []string) error {
	if len(words) == 0 || words[0][0] == '#' {
		return nil
	}
	o := serverLine{real: Real{Active: NotCounted, Inactive: NotCounted}}
	if err := o.read(words[1:]); err != nil {
		return err
	}
	switch {
	case words[0] != "-A" && words[0] != "-a":
		return fmt.Errorf("%q adds neither a virtual server nor a real one", words[0])
	case o.marked:
		return nil
	case !o.key.Addr.IsValid():
		return errors.New("it does not say which virtual server")
	case words[0] == "-A":
		return in.addServer(&o)
	}
	return in.addReal(&o)
}

func (in *serverReader) addServer(o *serverLine) error {
	if _, known := in.at[o.key]; known {
		return fmt.Errorf("the virtual server %s is there already", o.key)
	}
	if o.server.Scheduler == "" || o.real.Addr.IsValid() {
		return fmt.Errorf("the virtual server %s wants a scheduler, and real servers on lines of their own", o.key)
	}
	if err := o.mask(); err != nil {
		return err
	}
	in.at[o.key] = len(in.list)
	in.list = append(in.list, VirtualServer{Key: o.key, Server: o.server})
	return nil
}

func (in *serverReader) addReal(o *serverLine) error {
	i, known := in.at[o.key]
	if !known {
		return fmt.Errorf("the virtual server %s is not there", o.key)
	}
	to := realKey{o.key, o.real.Addr}
	if !to.real.IsValid() || dataplane.FamilyOf(to.real.Addr()) != o.key.Family() || in.reals[to] {
		return fmt.Errorf("%s cannot be another real server of %s", to.real, o.key)
	}
	in.reals[to] = true
	in.list[i].Reals = append(in.list[i].Reals, o.real)
	return nil
}

// serverLine is what the options of a line say.
type serverLine struct {
	key    Key
	marked bool // a firewall mark selects the virtual server
	server Server
	bits   string // the value of -M
	real   Real
}

// read reads options with their values, and those that have none.
func (o *serverLine) read(words []string) error {
	for len(words) > 0 {
		name := words[0]
		words = words[1:]
		if o.flag(name) {
			continue
		}
		if len(words) == 0 {
			return fmt.Errorf("the option %s has no value", name)
		}
		if err := o.option(name, words[0]); err != nil {
			return fmt.Errorf("%s %s: %w", name, words[0], err)
		}
		words = words[1:]
	}
	return nil
}

var forwardOptions = map[string]Forward{"-m": Masquerade, "-l": LocalNode, "-i": Tunnel, "-g": Route}

func (o *serverLine) flag(name string) bool {
	if f, ok := forwardOptions[name]; ok {
		o.real.Forward = f
		return true
	}
	switch name {
	case "-o":
		o.server.Flags |= OnePacket
	case "-6", "--tun-nocsum", "--tun-csum", "--tun-remcsum":
	default:
		return false
	}
	return true
}

func (o *serverLine) option(name, value string) (err error) {
	switch name {
	case "-t", "--tcp-service":
		return o.service(dataplane.TCP, value)
	case "-u", "--udp-service":
		return o.service(dataplane.UDP, value)
	case "--sctp-service":
		return o.service(dataplane.SCTP, value)
	case "-f":
		o.marked = true
	case "-s":
		o.server.Scheduler = value
	case "-p":
		var n uint64
		n, err = strconv.ParseUint(value, 10, 32)
		o.server.Persist = time.Duration(n) * time.Second
	case "-M":
		o.bits = value
	case "-b":
		err = o.flags(value)
	case "-r":
		o.real.Addr, err = numeric(value)
	case "-w":
		o.real.Weight, err = atMost(value, 65535)
	case "-x":
		var n int
		n, err = atMost(value, 1<<31-1)
		o.real.Upper = uint32(n)
	case "-y":
		var n int
		n, err = atMost(value, 1<<31-1)
		o.real.Lower = uint32(n)
	case "--pe", "--tun-type", "--tun-port":
	default:
		err = errors.New("unknown option")
	}
	return err
}

func (o *serverLine) service(p dataplane.Protocol, value string) error {
	a, err := numeric(value)
	o.key = Key{p, a.Addr(), a.Port()}
	return err
}

func numeric(value string) (netip.AddrPort, error) {
	a, err := netip.ParseAddrPort(value)
	if err != nil {
		return a, errors.New("want an address and port in numbers, as ipvsadm -Sn prints them")
	}
	return netip.AddrPortFrom(a.Addr().WithZone("").Unmap(), a.Port()), nil
}

func atMost(value string, limit int) (int, error) {
	n, err := strconv.Atoi(value)
	if err == nil && (n < 0 || n > limit) {
		err = fmt.Errorf("want 0 to %d", limit)
	}
	return n, err
}

// flags reads names as they are written for the scheduler or for none.
func (o *serverLine) flags(value string) error {
	for name := range strings.SplitSeq(value, ",") {
		switch name {
		case "flag-1", "sh-fallback", "mh-fallback":
			o.server.Flags |= HashFallback
		case "flag-2", "sh-port", "mh-port":
			o.server.Flags |= HashPort
		case "flag-3":
			o.server.Flags |= flagThird
		default:
			return fmt.Errorf("unknown flag %q", name)
		}
	}
	return nil
}

// mask takes over the value of -M, which means nothing without -p.
func (o *serverLine) mask() error {
	if o.bits == "" {
		return nil
	}
	if o.server.Persist == 0 {
		return errors.New("-M needs -p")
	}
	n, err := strconv.Atoi(o.bits)
	if o.key.Family() == dataplane.IPv4 {
		var mask netip.Addr
		if mask, err = netip.ParseAddr(o.bits); err == nil && mask.Is4() {
			b := mask.As4()
			n = bits.LeadingZeros32(^(uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])))
			if p, _ := netip.AddrFrom4([4]byte{255, 255, 255, 255}).Prefix(n); p.Addr() != mask {
				err = errors.New("not a prefix")
			}
		}
	}
	if err != nil || n < 1 || n >= o.key.Addr.BitLen() {
		return fmt.Errorf("-M %s is not the mask of a shorter prefix", o.bits)
	}
	o.server.PersistBits = uint8(n)
	return nil
}
