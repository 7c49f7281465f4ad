package ctl

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/answer"
)

// phonebook is a little cluster.
type phonebook struct{}

func addrs(list ...string) []netip.Addr {
	var all []netip.Addr
	for _, a := range list {
		all = append(all, netip.MustParseAddr(a))
	}
	return all
}

func (phonebook) Service(_ context.Context, n dataplane.ServiceName) ([]answer.Port, error) {
	return map[string][]answer.Port{
		"shop/web": {{Name: "http", Protocol: "TCP", Port: 80, Addresses: addrs("10.96.0.10", "fd00:96::10")}},
		"kube-system/dns": {
			{Name: "dns", Protocol: "UDP", Port: 53, Addresses: addrs("10.96.0.53")},
			{Name: "dns-tcp", Protocol: "TCP", Port: 53, Addresses: addrs("10.96.0.53")},
			{Name: "metrics", Protocol: "TCP", Port: 9153, Addresses: addrs("10.96.0.53")},
		},
		"shop/lost": {{Protocol: "TCP", Port: 80}},
	}[n.String()], nil
}

func (phonebook) Node(_ context.Context, name string) ([]netip.Addr, error) {
	if name == "worker-1" {
		return addrs("192.168.0.1", "fd00:c0::1"), nil
	}
	return nil, errors.New("no such node")
}

func (phonebook) Pod(_ context.Context, namespace, name string) ([]netip.Addr, error) {
	return map[string][]netip.Addr{
		"shop/client": addrs("10.244.1.7", "fd00:244::7"), "shop/client6": addrs("fd00:244::8"), "shop/new": nil,
	}[namespace+"/"+name], nil
}

func TestResolve(t *testing.T) {
	for _, test := range []struct{ protocol, from, to, want string }{
		{"tcp", "10.244.1.2", "10.96.0.10:80", "10.244.1.2 10.96.0.10:80"},
		{"tcp", "10.244.1.2:5000", "10.96.0.10:80", "10.244.1.2:5000 10.96.0.10:80"},
		{"tcp", "node", "10.96.0.10:80", " 10.96.0.10:80"},
		{"", "", "svc/shop/web", " 10.96.0.10:80"},
		{"tcp", "pod/shop/client", "svc/shop/web", "10.244.1.7 10.96.0.10:80"},
		{"tcp", "pod/shop/client6", "svc/shop/web:http", "fd00:244::8 [fd00:96::10]:80"},
		{"tcp", "fd00::1", "svc/shop/web:80", "fd00::1 [fd00:96::10]:80"},
		{"tcp", "::ffff:10.0.0.1", "service/shop/web:80", "10.0.0.1 10.96.0.10:80"},
		{"udp", "pod/shop/client", "svc/kube-system/dns", "10.244.1.7 10.96.0.53:53"},
		{"tcp", "pod/shop/client", "svc/kube-system/dns:metrics", "10.244.1.7 10.96.0.53:9153"},
		{"icmp", "pod/shop/client", "svc/kube-system/dns", "10.244.1.7 10.96.0.53:53"},
		{"tcp", "pod/shop/client:99", "node/worker-1:30080", "10.244.1.7:99 192.168.0.1:30080"},
		{"tcp", "node/worker-1", "pod/shop/client6:8080", "fd00:c0::1 [fd00:244::8]:8080"},

		{"gre", "node", "10.96.0.10:80", `error unknown protocol "gre": want TCP, UDP, SCTP, ICMP or ICMPv6`},
		{"tcp", "node", "web:80", `error destination: "web:80" is neither an address, with a port or without, nor a name such as svc/shop/web:80`},
		{"tcp", "node", "svc/web:80", `error destination: "svc/web:80" is none of pod/NAMESPACE/NAME, node/NAME and svc/NAMESPACE/NAME`},
		{"tcp", "node", "deploy/shop/web:80", `error destination: "deploy/shop/web:80" names a deploy: want a pod, a node or a svc`},
		{"tcp", "node", "svc/shop/web:443", `error destination: name one port of Service shop/web: those of TCP are 80`},
		{"udp", "node", "svc/shop/web", `error destination: name one port of Service shop/web: those of UDP are `},
		{"tcp", "node", "svc/kube-system/dns", `error destination: name one port of Service kube-system/dns: those of TCP are 53, 9153`},
		{"tcp", "node", "svc/shop/none", `error destination: no Service shop/none is served: it does not exist, has no ClusterIP, or is another proxy's`},
		{"tcp", "node", "svc/shop/lost", `error destination: port 80 of Service shop/lost has no ClusterIP of its own`},
		{"tcp", "node/worker-9", "10.96.0.10:80", `error source: no such node`},
		{"tcp", "pod/shop/new", "10.96.0.10:80", `error source: pod/shop/new has no address yet`},
		{"tcp", "node/worker-1", "pod/shop/client:http", `error destination: "http" is no port number`},
		{"tcp", "pod/shop/client6", "10.96.0.10:80", `error pod/shop/client6 (fd00:244::8) and 10.96.0.10:80 (10.96.0.10:80) have no family in common`},
	} {
		q, err := Resolve(t.Context(), phonebook{}, answer.Query{Protocol: test.protocol, Source: test.from, Destination: test.to})
		have := q.Source + " " + q.Destination
		if err != nil {
			have = "error " + err.Error()
		}
		if have != test.want {
			t.Errorf("%s %s %s: %s, want %s", test.protocol, test.from, test.to, have, test.want)
		}
	}
}
