package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/portway/portway/modules/dataplane"
)

// kubeProxyTable is the table that kube-proxy's nftables mode has in each
// family (KEP-3866). All that the mode makes is in it.
const kubeProxyTable = "kube-proxy"

// kubeProxyNFTables is the nftables mode, of which this program has only the
// end: it removes what kube-proxy made in it.
func kubeProxyNFTables() dataplane.Mode {
	m := unbuilt("nftables")
	m.Cleanup = removeNFTable
	return m
}

// removeNFTable removes kube-proxy's nftables table of a family, in one step.
// A kernel without nf_tables has none.
func removeNFTable(_ context.Context, f dataplane.Family) error {
	err := deleteTable(f)
	if err == nil || errors.Is(err, unix.ENOENT) { // somebody else was faster
		return nil
	}
	return fmt.Errorf("clean up nftables mode for %s: delete table %s %s: %w", f, nftFamilyName(f), kubeProxyTable, err)
}

func deleteTable(f dataplane.Family) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	family := nftFamily(f)
	tables, err := c.ListTablesOfFamily(family)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) {
		return nil // what nfnetlink says of a subsystem, or a family, that is not there
	}
	if err != nil {
		return err
	}
	i := slices.IndexFunc(tables, func(t *nftables.Table) bool { return t.Name == kubeProxyTable })
	if i < 0 {
		return nil
	}
	c.DelTable(tables[i])
	return c.Flush()
}

func nftFamily(f dataplane.Family) nftables.TableFamily {
	if f == dataplane.IPv6 {
		return nftables.TableFamilyIPv6
	}
	return nftables.TableFamilyIPv4
}

// nftFamilyName is what nft calls a family.
func nftFamilyName(f dataplane.Family) string {
	if f == dataplane.IPv6 {
		return "ip6"
	}
	return "ip"
}
