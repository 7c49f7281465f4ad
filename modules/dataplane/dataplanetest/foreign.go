package dataplanetest

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

// foreignRules are what a node has before a proxy starts: kubelet's hint and
// canary chains, a network plugin's masquerading, somebody's firewall. None of
// them touches the flows of the rig.
const foreignRules = `*raw
-A PREROUTING -p tcp -m tcp --dport 1 -j NOTRACK
COMMIT
*mangle
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
-A PREROUTING -m comment --comment "not ours" -p tcp --dport 1 -j MARK --set-xmark 0x10000/0x10000
COMMIT
*nat
:KUBE-KUBELET-CANARY - [0:0]
:CNI-abc - [0:0]
:OTHER-KUBE-SVC-X - [0:0]
-A PREROUTING -p tcp -m tcp --dport 1 -j CNI-abc
-A OUTPUT -p tcp -m tcp --dport 1 -j CNI-abc
-A POSTROUTING -p tcp -m tcp --dport 1 -m comment --comment "kubernetes service portals" -j CNI-abc
-A CNI-abc -p tcp -m tcp --dport 2 -j RETURN
COMMIT
*filter
:KUBE-FIREWALL - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
-A INPUT -j KUBE-FIREWALL
-A OUTPUT -j KUBE-FIREWALL
-A FORWARD -p tcp -m tcp --dport 1 -j DROP
-A KUBE-FIREWALL -p tcp -m tcp --dport 1 -m mark --mark 0x8000/0x8000 -j DROP
COMMIT
`

// foreignTables are another program's nftables rules. A node with the legacy back
// end may have a kernel without nftables.
const foreignTables = `table inet other {
	chain forward { type filter hook forward priority 0; policy accept; tcp dport 1 drop; }
}
`

// addForeign gives a node what belongs to others.
func addForeign(ctx context.Context, node *rig.Host, cfg Config) error {
	for _, f := range dataplane.Families() {
		if _, err := node.RunInput(ctx, foreignRules, cfg.tool(f, "-restore")); err != nil {
			return fmt.Errorf("rules of others: %w", err)
		}
	}
	if !cfg.legacy() {
		if _, err := node.RunInput(ctx, foreignTables, "nft", "-f", "-"); err != nil {
			return fmt.Errorf("tables of others: %w", err)
		}
	}
	if _, err := node.Run(ctx, "ipset", "create", "other", "hash:ip"); err != nil {
		return fmt.Errorf("sets of others: %w", err)
	}
	return nil
}

// hostPortRules are a network plugin's for a host port of a pod: in front of all
// others, and for every address of the node.
const hostPortRules = `*nat
:CNI-HOSTPORT-%[1]d - [0:0]
-I PREROUTING 1 -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-%[1]d
-I OUTPUT 1 -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-%[1]d
-A CNI-HOSTPORT-%[1]d -p tcp -m tcp --dport %[1]d -j DNAT --to-destination %[2]s
COMMIT
`

// addHostPort gives a port of the node to a pod elsewhere.
func addHostPort(ctx context.Context, node *rig.Host, cfg Config, port uint16) error {
	v4, v6, err := rig.Addrs("remote")
	if err != nil {
		return err
	}
	for _, f := range dataplane.Families() {
		to := netip.AddrPortFrom(ofFamily(f, v4, v6), targetPorts[0])
		if _, err := node.RunInput(ctx, fmt.Sprintf(hostPortRules, port, to), cfg.tool(f, "-restore"), "--noflush"); err != nil {
			return fmt.Errorf("host port %d: %w", port, err)
		}
	}
	return nil
}

// volatile is what changes in the kernel though nobody changes it: counters,
// random seeds and sizes of sets, and set entries that packets have made.
var volatile = regexp.MustCompile(`(?m)^#.*\n| ?\[\d+:\d+\]| initval \S+| hashsize \d+|^add .* timeout \d+\n| packets \d+ bytes \d+`)

// dumps are the commands that print the state in which planes leave traces.
func dumps(cfg Config) [][]string {
	all := [][]string{
		{"ipset", "save", "-sorted"},
		{"ip", "-o", "addr"},
		{"ip", "route", "show", "table", "all"},
		{"ip", "-6", "route", "show", "table", "all"},
		{"ip", "rule"},
		{"ip", "-6", "rule"},
		{"iptables-legacy-save"},
		{"ip6tables-legacy-save"},
	}
	if !cfg.legacy() {
		all = append(all, []string{"iptables-nft-save"}, []string{"ip6tables-nft-save"},
			[]string{"nft", "list", "tables"}, []string{"nft", "list", "table", "inet", "other"})
	}
	return all
}

// dump is the state of the node's kernel in which planes leave traces. Equal
// states give equal dumps.
func dump(ctx context.Context, node *rig.Host, cfg Config) (string, error) {
	var b strings.Builder
	for _, argv := range dumps(cfg) {
		out, err := node.Run(ctx, argv...)
		if err != nil {
			return "", fmt.Errorf("dump: %w", err)
		}
		out = volatile.ReplaceAllString(out, "")
		if argv[0] == "ipset" {
			out = sortedLines(out) // they are in the order in which they were made
		}
		fmt.Fprintf(&b, "== %s\n%s", strings.Join(argv, " "), out)
	}
	if cfg.Normalize != nil {
		return cfg.Normalize(b.String()), nil
	}
	return b.String(), nil
}

// difference lists the lines that only one of two texts has.
func difference(a, b string) string {
	var d strings.Builder
	for _, line := range onlyIn(a, b) {
		fmt.Fprintln(&d, "-", line)
	}
	for _, line := range onlyIn(b, a) {
		fmt.Fprintln(&d, "+", line)
	}
	if d.Len() == 0 && a != b {
		fmt.Fprintf(&d, "the same lines in another order, from here on:\n%s", a[commonPrefix(a, b):])
	}
	return d.String()
}

func commonPrefix(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

func sortedLines(text string) string {
	return strings.Join(slices.Sorted(strings.Lines(text)), "")
}

// onlyIn lists the lines of a that b has not.
func onlyIn(a, b string) []string {
	has := make(map[string]bool)
	for line := range strings.SplitSeq(b, "\n") {
		has[line] = true
	}
	var only []string
	for line := range strings.SplitSeq(a, "\n") {
		if !has[line] {
			only = append(only, line)
		}
	}
	return only
}
