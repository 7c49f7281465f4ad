package iptables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/portway/portway/modules/netfilter"
)

// nftHost is a host whose rules are in nf_tables.
type nftHost struct{ *netfilter.Host }

// Generation is the number of the rule set of this network namespace. It grows
// with each transaction that changes rules of any family, and never by reading.
func (nftHost) Generation(context.Context) (uint32, error) {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN, 0)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	answers, err := req.Execute(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN)
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
