package ctl

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/portway/portway/modules/dataplane/answer"
)

const savedNode = `{"mode": "iptables", "config": {"nodeName": "worker-1", "detectLocal": "NodeCIDR", "masqueradeBit": 14, "dropUnallocated": true},
"local": {"addresses": ["192.168.0.1/24"]},
"routes": [{"to": "0.0.0.0/0", "device": "eth0"}, {"to": "10.244.1.0/24", "device": "cni0"}]}`

// savedObjects is what kubectl get services,endpointslices,nodes,pods -o yaml
// prints, as documents and as lists.
const savedObjects = `apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Service
  metadata: {name: web, namespace: shop}
  spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ports: [{name: http, port: 80, protocol: TCP}]}
- apiVersion: serving.knative.dev/v1
  kind: Service
  metadata: {name: other, namespace: shop}
  spec: {clusterIP: not an address, ports: 7}
- apiVersion: v1
  kind: Pod
  metadata: {name: client, namespace: shop}
  status: {podIPs: [{ip: 10.244.1.7}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSliceList
items:
- metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
  addressType: IPv4
  ports: [{name: http, port: 8080}]
  endpoints: [{addresses: [10.244.1.11], nodeName: worker-1}]
---
apiVersion: v1
kind: Node
metadata: {name: worker-1}
spec: {podCIDR: 10.244.1.0/24}
status: {addresses: [{type: InternalIP, address: 192.168.0.1}]}
`

const savedRules = `*nat
:PREROUTING ACCEPT [0:0]
:KUBE-SVC-X - [0:0]
-A PREROUTING -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-X
-A KUBE-SVC-X -p tcp -m tcp -j DNAT --to-destination 10.244.1.11:8080
COMMIT
`

func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Files by hand: YAML as kubectl prints it, and what iptables-save prints.
func TestSavedByHand(t *testing.T) {
	dir := write(t, map[string]string{nodeFile: savedNode, rulesFile4: savedRules, "a.yaml": savedObjects, "notes.txt": "{"})
	s, err := OpenSaved(dir)
	if err != nil {
		t.Fatal(err)
	}
	q, err := Resolve(t.Context(), s, answer.Query{Source: "pod/shop/client", Destination: "svc/shop/web"})
	if err != nil {
		t.Fatal(err)
	}
	e, err := s.Explain(t.Context(), q)
	if want := "TCP 10.244.1.7:40000 -> 10.96.0.10:80 from cni0"; err != nil || !e.Agree() || e.Flow != want || e.Planes[0].Should.Endpoints[0].Slice != "web-1" {
		t.Errorf("%v, want it to agree and be %q: %+v", err, want, e)
	}
	a, err := s.Audit(t.Context())
	if err != nil || a.Clean() || a.Failed() {
		t.Errorf("%v, these are not our rules: %+v", err, a)
	}
	if _, err := Resolve(t.Context(), s, answer.Query{Source: "node/worker-1", Destination: "svc/shop/other"}); err == nil || !strings.Contains(err.Error(), "no Service shop/other is served") {
		t.Errorf("a Service of another API: %v", err)
	}
}

func TestSavedRefuses(t *testing.T) {
	good := map[string]string{nodeFile: savedNode, rulesFile4: savedRules, "a.yaml": savedObjects}
	for _, test := range []struct{ name, text, want string }{
		{nodeFile, "", "node.json is missing"},
		{nodeFile, "{", "read node.json"},
		{nodeFile, `{"mode": "iptables", "nodeName": "n"}`, `unknown field "nodeName"`},
		{nodeFile, `{"mode": "userspace"}`, `the node ran the mode "userspace"`},
		{nodeFile, `{"mode": "iptables", "config": {"masqueradeBit": 99}}`, "masquerade bit 99"},
		{rulesFile4, "", "neither iptables.save nor ip6tables.save was saved"},
		{rulesFile4, "*nat\n", "read iptables.save and ipset.save: the saved rules of table nat end without COMMIT"},
		{setsFile, "nonsense", "line 1 of the saved sets"},
		{"a.yaml", "kind: [", "a.yaml: document 1: "},
		{"a.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {ports: 7}\n", "a.yaml: document 1: Service shop/web: "},
	} {
		files := map[string]string{}
		for name, text := range good {
			files[name] = text
		}
		if files[test.name] = test.text; test.text == "" {
			delete(files, test.name)
		}
		if s, err := OpenSaved(write(t, files)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s %q: %v, %v, want %q", test.name, test.text, s, err, test.want)
		}
	}
	if _, err := OpenSaved(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a file that is not there")
	}
}
