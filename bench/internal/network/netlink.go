package network

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// Netlink counts the datagrams that pass between the kernel and the programs of a
// namespace, in both directions.
type Netlink struct{ host *Host }

// tapOfNetlink is a device that each such datagram passes.
const tapOfNetlink = "nlmon0"

// CountNetlink begins to count. The kernel must have nlmon (CONFIG_NLMON).
func CountNetlink(h *Host) (*Netlink, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = tapOfNetlink
	if err := h.links.LinkAdd(&netlink.GenericLink{LinkAttrs: attrs, LinkType: "nlmon"}); err != nil {
		return nil, fmt.Errorf("%s: count datagrams of netlink: %w", h.name, err)
	}
	return &Netlink{h}, h.up(tapOfNetlink)
}

// Count is how many datagrams there were, those of the question among them.
func (n *Netlink) Count() (uint64, error) {
	link, err := n.host.links.LinkByName(tapOfNetlink)
	if err != nil {
		return 0, fmt.Errorf("%s: %s: %w", n.host.name, tapOfNetlink, err)
	}
	return link.Attrs().Statistics.RxPackets, nil
}
