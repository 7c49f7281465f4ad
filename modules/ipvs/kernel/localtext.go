package kernel

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/portway/portway/modules/dataplane"
)

// WriteLocals writes what a device makes local as
// "ip route show table local dev kube-ipvs0" does, of both families; nothing if
// there is no device. An address shows by the route that the kernel makes for it.
func WriteLocals(ctx context.Context, w io.Writer, d Device) error {
	out := bufio.NewWriter(w)
	list := []Local{{Prefix: netip.MustParsePrefix(anchor), Bound: true}}
	for _, f := range dataplane.Families() {
		more, err := d.List(ctx, f)
		if errors.Is(err, ErrNoDevice) {
			return nil // one that is down is as good as none
		}
		if err != nil {
			return err
		}
		list = append(list, more...)
	}
	for _, l := range list {
		fmt.Fprintf(out, "local %s", prefixText(l.Prefix))
		switch {
		case l.Bound:
			fmt.Fprintf(out, " proto kernel scope host src %s", l.Prefix.Addr())
		case l.Source.IsValid():
			fmt.Fprintf(out, " proto %d scope host src %s", RouteProtocol, l.Source)
		default:
			fmt.Fprintf(out, " proto %d scope host", RouteProtocol)
		}
		fmt.Fprintln(out)
	}
	return out.Flush()
}

func prefixText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// ReadLocals reads what "ip route show table local" printed, of the device or of
// all, of one family or of both. The device was there if anything at all led
// through it: it has an address that no Service has.
func ReadLocals(r io.Reader) (SavedDevice, error) {
	var d SavedDevice
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		words := strings.Fields(lines.Text())
		if len(words) == 0 {
			continue
		}
		route, err := readRoute(words)
		if err != nil {
			return SavedDevice{}, fmt.Errorf("line %d of the saved routes: %w", n, err)
		}
		if route.device != "" && route.device != DeviceName {
			continue
		}
		d.Exists = true
		if route.kind == "local" && (route.Bound && isGlobal(route.Prefix) || route.protocol == fmt.Sprint(RouteProtocol)) {
			d.Locals = append(d.Locals, route.Local)
		}
	}
	if err := lines.Err(); err != nil {
		return SavedDevice{}, fmt.Errorf("reading the saved routes: %w", err)
	}
	slices.SortFunc(d.Locals, Local.Compare)
	d.Locals = slices.CompactFunc(d.Locals, func(a, b Local) bool { return a.Compare(b) == 0 })
	return d, nil
}

// savedRoute is a line of "ip route".
type savedRoute struct {
	Local
	kind, device, protocol string
}

func readRoute(words []string) (r savedRoute, err error) {
	if len(words) < 2 || !slices.Contains([]string{"local", "broadcast", "anycast", "multicast", "unicast"}, words[0]) {
		return r, fmt.Errorf("%q is no route of the table local", strings.Join(words, " "))
	}
	r.kind = words[0]
	if r.Prefix, err = parsePrefix(words[1]); err != nil {
		return r, err
	}
	for i := 2; i+1 < len(words); i++ {
		value := words[i+1]
		switch words[i] {
		case "dev":
			r.device = value
		case "proto":
			r.protocol = value
		case "src":
			if r.Source, err = netip.ParseAddr(value); err != nil {
				return r, err
			}
		default:
			continue
		}
		i++
	}
	if r.Bound = r.protocol == "kernel"; r.Bound {
		r.Source = netip.Addr{}
	}
	return r, nil
}

func parsePrefix(text string) (netip.Prefix, error) {
	if strings.Contains(text, "/") {
		p, err := netip.ParsePrefix(text)
		return p, err
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Prefix{}, err
	}
	return netip.PrefixFrom(a, a.BitLen()), nil
}
