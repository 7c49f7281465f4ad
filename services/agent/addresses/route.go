package addresses

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// Toward returns the device through which this network namespace reaches an
// address, which is that by which packets from there come in, unless routes are
// asymmetric.
func Toward(a netip.Addr) (string, error) {
	routes, err := netlink.RouteGet(a.AsSlice())
	if err != nil {
		return "", fmt.Errorf("look up the route to %s: %w", a, err)
	}
	if len(routes) == 0 {
		return "", errors.New("there is no route to " + a.String())
	}
	link, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return "", fmt.Errorf("look up the device of the route to %s: %w", a, err)
	}
	return link.Attrs().Name, nil
}
