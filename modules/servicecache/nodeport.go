package servicecache

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/portway/portway/modules/dataplane"
)

// nodePortSelection says which addresses of the node take NodePorts.
type nodePortSelection struct {
	primary bool
	cidrs   byFamily[[]netip.Prefix]
}

// selectNodePorts reads nodePortAddresses.
func selectNodePorts(list []string) (nodePortSelection, error) {
	var s nodePortSelection
	var errs []error
	add := func(ps ...netip.Prefix) {
		for _, p := range ps {
			to := s.cidrs.of(prefixFamily(p))
			*to = append(*to, p)
		}
	}
	for _, entry := range list {
		switch entry {
		case "primary":
			s.primary = true
		case "localhost":
			add(netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128"))
		case "all":
			add(netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0"))
		default:
			p, err := parsePrefix(entry)
			if err != nil {
				errs = append(errs, fmt.Errorf("nodePortAddresses: %w nor one of primary, localhost, all", err))
				continue
			}
			add(p)
		}
	}
	return s, errors.Join(errs...)
}

// everything tells whether all addresses of a family are selected because the
// list does not name it. "primary" names both: while the Node is unknown that
// is nothing, rather than everything.
func (s *nodePortSelection) everything(f dataplane.Family) bool {
	return !s.primary && len(*s.cidrs.of(f)) == 0
}

func (s *nodePortSelection) selects(a netip.Addr, primary *byFamily[netip.Addr]) bool {
	f := dataplane.FamilyOf(a)
	if s.everything(f) || s.primary && *primary.of(f) == a {
		return true
	}
	return slices.ContainsFunc(*s.cidrs.of(f), func(p netip.Prefix) bool { return p.Contains(a) })
}

// loopback tells whether NodePorts answer on loopback: if the list names it,
// or if they do by default and the list admits it.
func (s *nodePortSelection) loopback(byDefault bool) bool {
	for _, f := range dataplane.Families() {
		if byDefault && s.everything(f) {
			return true
		}
		for _, p := range *s.cidrs.of(f) {
			if p.Addr().IsLoopback() || byDefault && p.Contains(f.Loopback()) {
				return true
			}
		}
	}
	return false
}
