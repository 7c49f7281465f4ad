package netfilter

import (
	"errors"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/portway/portway/modules/dataplane"
)

// listing is a command that prints the rules of a table, or of all of them.
type listing struct {
	argv []string
	// bare is the table of which it prints what belongs between its name and
	// COMMIT; empty if it prints those too.
	bare Table
}

// listings are the commands that print tables. iptables-nft-save 1.8.9 looks at
// all tables for each: 0.9 s for an empty one besides 10,000 chains in nat,
// where -S needs no time. iptables-legacy-save is the faster one of the two, and
// prints all tables in hardly more time than one.
func (b Backend) listings(tables []Table) []listing {
	var all []listing
	if b.Name == NFT {
		for _, t := range tables {
			all = append(all, listing{[]string{b.command, "-t", string(t), "-S"}, t})
		}
		return all
	}
	switch len(tables) {
	case 0:
		return nil
	case 1:
		return []listing{{argv: []string{b.command + "-save", "-t", string(tables[0])}}}
	}
	return []listing{{argv: []string{b.command + "-save"}}}
}

// asSaved makes what is printed look like what iptables-save does. How the
// program ended says whether it is complete.
func (l listing) asSaved(out io.Reader) io.Reader {
	if l.bare == "" {
		return out
	}
	return io.MultiReader(strings.NewReader("*"+string(l.bare)+"\n"), out, strings.NewReader("COMMIT\n"))
}

// isMade says whether a table exists. The tables of iptables-legacy begin to
// exist, and to cost every packet time, when somebody looks at them.
func (b Backend) isMade(t Table) bool {
	if b.Name == Legacy {
		return b.isLegacyMade(t)
	}
	family := uint8(unix.AF_INET)
	if b.Family == dataplane.IPv6 {
		family = unix.AF_INET6
	}
	name := nl.NewRtAttr(unix.NFTA_TABLE_NAME, nl.ZeroTerminated(string(t)))
	_, err := askNFTables(family, unix.NFT_MSG_GETTABLE, unix.NFT_MSG_NEWTABLE, name)
	return !errors.Is(err, unix.ENOENT) // let iptables say what else is wrong
}

// askNFTables sends a request and returns what answers it.
func askNFTables(family uint8, request, answer int, attributes ...nl.NetlinkRequestData) ([][]byte, error) {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|request, 0)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	for _, a := range attributes {
		req.AddData(a)
	}
	return req.Execute(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_NFTABLES<<8|uint16(answer))
}

func (b Backend) isLegacyMade(t Table) bool {
	family := "ip"
	if b.Family == dataplane.IPv6 {
		family = "ip6"
	}
	// Of this thread: tests have threads in namespaces of their own.
	names, err := os.ReadFile("/proc/thread-self/net/" + family + "_tables_names")
	switch {
	case errors.Is(err, os.ErrNotExist):
		return false // the module is not there, nor its tables
	case err != nil:
		return true // let iptables say what is wrong
	}
	return slices.Contains(strings.Fields(string(names)), string(t))
}
