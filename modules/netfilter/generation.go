package netfilter

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Generation is the number of the rule set of this network namespace. It grows
// with each transaction of nf_tables that changes rules of any family, whoever
// makes it, and never by reading. Rules of iptables-legacy are not counted:
// errors.ErrUnsupported.
func (h *Host) Generation(context.Context) (uint32, error) {
	if h.backend.Name != NFT {
		return 0, fmt.Errorf("generation of the rules of iptables-%s: %w", h.backend.Name, errors.ErrUnsupported)
	}
	answers, err := askNFTables(unix.AF_UNSPEC, unix.NFT_MSG_GETGEN, unix.NFT_MSG_NEWGEN)
	if err != nil {
		return 0, fmt.Errorf("ask nf_tables for its generation: %w", err)
	}
	for _, msg := range answers {
		if len(msg) < nl.SizeofNfgenmsg {
			continue
		}
		attrs, err := nl.ParseRouteAttr(msg[nl.SizeofNfgenmsg:])
		if err != nil {
			return 0, fmt.Errorf("read the generation of nf_tables: %w", err)
		}
		for _, a := range attrs {
			if a.Attr.Type == unix.NFTA_GEN_ID && len(a.Value) == 4 {
				return binary.BigEndian.Uint32(a.Value), nil
			}
		}
	}
	return 0, errors.New("nf_tables does not tell its generation")
}
