package main

import (
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

// kubeProxyTable is the nftables table of kube-proxy, one for each family.
const kubeProxyTable = "kube-proxy"

// kubeProxies are what kube-proxy 1.37 leaves in the kernel in each of its
// modes that this kernel has, for the Service of newSwitchSite.
func kubeProxies(t *testing.T, modes []dataplane.Mode) []predecessor {
	leaves := func(mode string, write func(*site, realm)) predecessor {
		return predecessor{name: "kube-proxy's " + mode, keepsFlows: true, start: func(s *site) func() {
			for _, f := range dataplane.Families() {
				write(s, s.realm(f))
			}
			return func() {} // it has ended already
		}}
	}
	all := []predecessor{leaves("iptables", leaveIPTables)}
	if exec.CommandContext(t.Context(), "nft", "--check", "add", "table", "ip", kubeProxyTable).Run() == nil {
		all = append(all, leaves("nftables", leaveNFTables))
	}
	if slices.ContainsFunc(modes, func(m dataplane.Mode) bool { return m.Name == "ipvs" }) {
		sees := leaves("ipvs", leaveIPVS)
		sees.sees = true
		all = append(all, sees)
	}
	return all
}

// realm is what differs between the families.
type realm struct {
	family         dataplane.Family
	vip            netip.AddrPort
	node           []netip.Addr
	pods, services netip.Prefix
	endpoints      []netip.AddrPort
}

func (s *site) realm(f dataplane.Family) realm {
	r := realm{
		family: f, vip: vip, pods: rig.PodRange4, services: rig.ServiceRange4,
		node: []netip.Addr{netip.MustParseAddr("192.168.77.10"), netip.MustParseAddr("192.168.77.11")},
	}
	if f == dataplane.IPv6 {
		r.vip, r.pods, r.services = vip6, rig.PodRange6, rig.ServiceRange6
		r.node = []netip.Addr{netip.MustParseAddr("fd00:77::10"), netip.MustParseAddr("fd00:77::11")}
	}
	for _, e := range s.rig.Endpoints {
		r.endpoints = append(r.endpoints, netip.AddrPortFrom(e.Addr(r.vip.Addr()), 8080))
	}
	return r
}

// pick is one of two words, by family.
func (r realm) pick(four, six string) string {
	if r.family == dataplane.IPv6 {
		return six
	}
	return four
}

// run executes a program on the node with something to read.
func (s *site) run(input string, argv ...string) {
	s.t.Helper()
	if _, err := s.rig.Node.RunInput(s.t.Context(), input, argv...); err != nil {
		s.t.Fatalf("%v\n%s", err, input)
	}
}

// script collects lines.
type script struct{ strings.Builder }

func (b *script) add(format string, args ...any) { fmt.Fprintf(&b.Builder, format+"\n", args...) }

// The chains that kube-proxy names after the Service's port and its endpoints.
const (
	poolHash  = "67NZLRHBNDSAWJRO"
	firstHash = "AAAAAAAAAAAAAAA"
)

// leaveIPTables has a chain for each Service port and each endpoint, and one
// long list of Services.
func leaveIPTables(s *site, r realm) {
	svc, ext := "KUBE-SVC-"+poolHash, "KUBE-EXT-"+poolHash
	sep := func(i int) string { return fmt.Sprintf("KUBE-SEP-%s%d", firstHash, i) }
	var b script
	b.add("*mangle\n:KUBE-PROXY-CANARY - [0:0]\nCOMMIT\n*filter")
	for _, c := range []string{"KUBE-EXTERNAL-SERVICES", "KUBE-FORWARD", "KUBE-NODEPORTS", "KUBE-PROXY-CANARY", "KUBE-PROXY-FIREWALL", "KUBE-SERVICES"} {
		b.add(":%s - [0:0]", c)
	}
	for _, hook := range []string{"INPUT", "FORWARD", "OUTPUT"} {
		b.add(`-I %s -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL`, hook)
	}
	b.add(`-I INPUT -m comment --comment "kubernetes health check service ports" -j KUBE-NODEPORTS`)
	for _, hook := range []string{"INPUT", "FORWARD"} {
		b.add(`-I %s -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES`, hook)
	}
	b.add(`-I FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD`)
	for _, hook := range []string{"FORWARD", "OUTPUT"} {
		b.add(`-I %s -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES`, hook)
	}
	b.add(`-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP`)
	b.add(`-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT`)
	b.add(`-A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT`)
	b.add("COMMIT\n*nat")
	for _, c := range []string{"KUBE-MARK-MASQ", "KUBE-NODEPORTS", "KUBE-POSTROUTING", "KUBE-PROXY-CANARY", "KUBE-SERVICES", svc, ext} {
		b.add(":%s - [0:0]", c)
	}
	for i := range r.endpoints {
		b.add(":%s - [0:0]", sep(i))
	}
	for _, hook := range []string{"PREROUTING", "OUTPUT"} {
		b.add(`-I %s -m comment --comment "kubernetes service portals" -j KUBE-SERVICES`, hook)
	}
	b.add(`-I POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING`)
	b.add(`-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000`)
	b.add(`-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN`)
	b.add(`-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0`)
	b.add(`-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully`)
	b.add(`-A KUBE-SERVICES -d %s -p tcp -m comment --comment "shop/web:http cluster IP" -m tcp --dport %d -j %s`, r.vip.Addr(), r.vip.Port(), svc)
	b.add(`-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS`)
	b.add(`-A KUBE-NODEPORTS -p tcp -m comment --comment shop/web:http -m tcp --dport %d -j %s`, nodePort.Port(), ext)
	b.add(`-A %s -m comment --comment "masquerade traffic for shop/web:http external destinations" -j KUBE-MARK-MASQ`, ext)
	b.add(`-A %s -j %s`, ext, svc)
	b.add(`-A %s ! -s %s -d %s -p tcp -m comment --comment "shop/web:http cluster IP" -m tcp --dport %d -j KUBE-MARK-MASQ`, svc, r.pods, r.vip.Addr(), r.vip.Port())
	for i, e := range r.endpoints {
		chance := ""
		if left := len(r.endpoints) - i; left > 1 {
			chance = fmt.Sprintf("-m statistic --mode random --probability %.10f ", 1/float64(left))
		}
		b.add(`-A %s -m comment --comment "shop/web:http -> %s" %s-j %s`, svc, e, chance, sep(i))
		b.add(`-A %s -s %s -m comment --comment shop/web:http -j KUBE-MARK-MASQ`, sep(i), e.Addr())
		b.add(`-A %s -p tcp -m comment --comment shop/web:http -m tcp -j DNAT --to-destination %s`, sep(i), e)
	}
	b.add("COMMIT")
	s.run(b.String(), r.pick("iptables-restore", "ip6tables-restore"), "--noflush")
}

// leaveNFTables has maps of verdicts, and hooks at the priorities of KEP-3866.
func leaveNFTables(s *site, r realm) {
	ip := r.pick("ip", "ip6")
	svc, ext := "service-ABCDEFGH-shop/web/tcp/http", "external-ABCDEFGH-shop/web/tcp/http"
	var b script
	b.add("table %s %s {", ip, kubeProxyTable)
	b.add("set cluster-ips { type %s_addr; elements = { %s } }", r.pick("ipv4", "ipv6"), r.vip.Addr())
	b.add("set nodeport-ips { type %s_addr; elements = { %s, %s } }", r.pick("ipv4", "ipv6"), r.node[0], r.node[1])
	b.add("chain mark-for-masquerade { mark set mark or 0x4000; }")
	b.add("chain masquerading { mark and 0x4000 == 0 return; mark set mark xor 0x4000; masquerade fully-random; }")
	b.add("chain reject-chain { reject; }")
	var choice []string
	for i, e := range r.endpoints {
		name := fmt.Sprintf("endpoint-ABCDEFG%d-shop/web/tcp/http__endpoint", i)
		b.add(`chain %s { %s saddr %s jump mark-for-masquerade; meta l4proto tcp dnat to %s; }`, name, ip, e.Addr(), e)
		choice = append(choice, fmt.Sprintf(`%d : goto %s`, i, name))
	}
	b.add(`chain %s { %s daddr %s tcp dport %d %s saddr != %s jump mark-for-masquerade; numgen random mod %d vmap { %s }; }`,
		svc, ip, r.vip.Addr(), r.vip.Port(), ip, r.pods, len(choice), strings.Join(choice, ", "))
	b.add(`chain %s { jump mark-for-masquerade; goto %s; }`, ext, svc)
	b.add(`map service-ips { type %s_addr . inet_proto . inet_service : verdict; elements = { %s . tcp . %d : goto %s } }`,
		r.pick("ipv4", "ipv6"), r.vip.Addr(), r.vip.Port(), svc)
	b.add(`map service-nodeports { type inet_proto . inet_service : verdict; elements = { tcp . %d : goto %s } }`, nodePort.Port(), ext)
	b.add(`map no-endpoint-services { type %s_addr . inet_proto . inet_service : verdict; }`, r.pick("ipv4", "ipv6"))
	b.add("chain services { %[1]s daddr . meta l4proto . th dport vmap @service-ips; %[1]s daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports; }", ip)
	b.add("chain service-endpoints-check { %s daddr . meta l4proto . th dport vmap @no-endpoint-services; }", ip)
	b.add("chain cluster-ips-check { %[1]s daddr @cluster-ips reject; %[1]s daddr %[2]s drop; }", ip, r.services)
	b.add("chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }")
	b.add("chain nat-output { type nat hook output priority -100; jump services; }")
	b.add("chain nat-postrouting { type nat hook postrouting priority srcnat; jump masquerading; }")
	b.add("chain filter-input { type filter hook input priority -110; ct state new jump service-endpoints-check; }")
	b.add("chain filter-forward { type filter hook forward priority -110; ct state new jump service-endpoints-check; ct state new jump cluster-ips-check; }")
	b.add("chain filter-output { type filter hook output priority -110; ct state new jump service-endpoints-check; }")
	b.add("chain filter-output-post-dnat { type filter hook output priority -90; ct state new jump cluster-ips-check; }")
	b.add("}")
	s.run(b.String(), "nft", "-f", "-")
}

// leaveIPVS has virtual servers, their addresses on a device, and few rules that
// ask sets.
func leaveIPVS(s *site, r realm) {
	set := func(name string) string { return r.pick("KUBE-", "KUBE-6-") + name }
	if r.family == dataplane.IPv4 {
		s.run("", "ip", "link", "add", "kube-ipvs0", "type", "dummy")
		if err := s.rig.Node.SetSysctl("net.ipv4.vs.conntrack", "1"); err != nil {
			s.t.Fatal(err)
		}
	}
	s.run("", "ip", "address", "add", r.vip.Addr().String()+r.pick("/32", "/128"), "dev", "kube-ipvs0")
	var servers, sets, rules script
	for _, at := range []netip.AddrPort{r.vip, netip.AddrPortFrom(r.node[0], nodePort.Port()), netip.AddrPortFrom(r.node[1], nodePort.Port())} {
		servers.add("-A -t %s -s rr", at)
		for _, e := range r.endpoints {
			servers.add("-a -t %s -r %s -m -w 1", at, e)
		}
	}
	s.run(servers.String(), "ipvsadm", "-R")

	family := r.pick("inet", "inet6")
	sets.add("create %s hash:ip,port family %s", set("CLUSTER-IP"), family)
	sets.add("add %s %s,tcp:%d", set("CLUSTER-IP"), r.vip.Addr(), r.vip.Port())
	sets.add("create %s bitmap:port range 0-65535", set("NODE-PORT-TCP"))
	sets.add("add %s %d", set("NODE-PORT-TCP"), nodePort.Port())
	sets.add("create %s hash:ip,port family %s", set("LOAD-BALANCER"), family)
	sets.add("create %s hash:ip,port,ip family %s", set("LOOP-BACK"), family)
	for _, e := range r.endpoints {
		sets.add("add %s %s,tcp:%d,%s", set("LOOP-BACK"), e.Addr(), e.Port(), e.Addr())
	}
	s.run(sets.String(), "ipset", "restore")

	rules.add("*filter\n:KUBE-FORWARD - [0:0]\n:KUBE-IPVS-FILTER - [0:0]\n:KUBE-NODE-PORT - [0:0]\n:KUBE-PROXY-FIREWALL - [0:0]\n:KUBE-SOURCE-RANGES-FIREWALL - [0:0]")
	rules.add(`-I INPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-FILTER`)
	rules.add(`-I INPUT -m comment --comment "kubernetes health check rules" -j KUBE-NODE-PORT`)
	rules.add(`-I INPUT -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL`)
	rules.add(`-I FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD`)
	rules.add(`-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT`)
	rules.add(`-A KUBE-IPVS-FILTER -m set --match-set %s dst,dst -j RETURN`, set("LOAD-BALANCER"))
	rules.add(`-A KUBE-IPVS-FILTER -m set --match-set %s dst,dst -j RETURN`, set("CLUSTER-IP"))
	rules.add("COMMIT\n*nat\n:KUBE-LOAD-BALANCER - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n:KUBE-NODE-PORT - [0:0]\n:KUBE-POSTROUTING - [0:0]\n:KUBE-SERVICES - [0:0]")
	rules.add(`-I PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES`)
	rules.add(`-I OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES`)
	rules.add(`-I POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING`)
	rules.add(`-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000`)
	rules.add(`-A KUBE-NODE-PORT -p tcp -m comment --comment "Kubernetes nodeport TCP port for masquerade purpose" -m set --match-set %s dst -j KUBE-MARK-MASQ`, set("NODE-PORT-TCP"))
	rules.add(`-A KUBE-POSTROUTING -m comment --comment "Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose" -m set --match-set %s dst,dst,src -j MASQUERADE`, set("LOOP-BACK"))
	rules.add(`-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN`)
	rules.add(`-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0`)
	rules.add(`-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully`)
	rules.add(`-A KUBE-SERVICES -m comment --comment "Kubernetes service lb portal" -m set --match-set %s dst,dst -j KUBE-LOAD-BALANCER`, set("LOAD-BALANCER"))
	rules.add(`-A KUBE-SERVICES ! -s %s -m comment --comment "Kubernetes service cluster ip + port for masquerade purpose" -m set --match-set %s dst,dst -j KUBE-MARK-MASQ`, r.pods, set("CLUSTER-IP"))
	rules.add(`-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT`)
	rules.add(`-A KUBE-SERVICES -m set --match-set %s dst,dst -j ACCEPT`, set("CLUSTER-IP"))
	rules.add(`-A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ`)
	rules.add("COMMIT")
	s.run(rules.String(), r.pick("iptables-restore", "ip6tables-restore"), "--noflush")
}
