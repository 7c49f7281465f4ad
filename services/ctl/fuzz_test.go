package ctl

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/portway/portway/modules/dataplane/answer"
)

// A name that can be read stands for addresses that a question may be about.
func FuzzResolve(f *testing.F) {
	f.Add("tcp", "pod/shop/client:80", "svc/shop/web:http")
	f.Add("udp", "node/worker-1", "service/kube-system/dns")
	f.Add("icmp", "fe80::1%eth0", "[::1]:80")
	f.Fuzz(func(t *testing.T, protocol, source, destination string) {
		q, err := Resolve(t.Context(), phonebook{}, answer.Query{Protocol: protocol, Source: source, Destination: destination})
		if err != nil {
			return
		}
		for _, word := range []string{q.Source, q.Destination} {
			if word == "" && word == q.Source {
				continue
			}
			if _, err := literal(word); err != nil {
				t.Errorf("%q %q are resolved to %+v: %v", source, destination, q, err)
			}
		}
	})
}

// Whatever files there are, they are refused, or a flow and an audit have an
// answer.
func FuzzOpenSaved(f *testing.F) {
	const rules = "*nat\n:PREROUTING ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n-A PREROUTING -j KUBE-SERVICES\nCOMMIT\n"
	f.Add([]byte(savedNode), []byte(savedObjects), []byte(rules), []byte("create KUBE-IPT-CLUSTER-IP hash:ip family inet\n"), []byte("[]"), []byte(nil), []byte(nil))
	f.Add([]byte(`{"mode":"iptables"}`), []byte(`{"kind":"List","apiVersion":"v1","items":[{"kind":"ServiceList","apiVersion":"v1","items":[{}]}]}`), []byte("*nat\nCOMMIT\n"), []byte(nil), []byte("[]"), []byte(nil), []byte(nil))
	for _, mode := range []string{"userspace", "ipvs"} {
		files := byHand(mode)
		part := func(name string) []byte { return []byte(files[name]) }
		f.Add(part(nodeFile), part("a.yaml"), part(rulesFile4), []byte(nil), part(relayFile), part(serversFile), part(localsFile))
	}
	f.Fuzz(func(t *testing.T, node, objects, rules, sets, relay, servers, locals []byte) {
		dir := t.TempDir()
		for name, text := range map[string][]byte{
			nodeFile: node, "objects.yaml": objects, rulesFile4: rules, setsFile: sets, relayFile: relay, serversFile: servers, localsFile: locals,
		} {
			if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s, err := OpenSaved(dir)
		if err != nil {
			return
		}
		if a, err := s.Audit(t.Context()); err != nil || len(a.Planes) == 0 {
			t.Errorf("audit: %+v, %v", a, err)
		}
		e, err := s.Explain(t.Context(), answer.Query{Source: "10.244.1.7", Destination: "10.96.0.10:80", Interface: "eth0"})
		if err != nil || len(e.Planes) == 0 {
			t.Errorf("explain: %+v, %v", e, err)
		}
	})
}
