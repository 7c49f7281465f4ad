package ctl

import (
	"fmt"
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

// byHand are files of a node in each of the other modes, as the programs of
// operators print them.
func byHand(mode string) map[string]string {
	files := map[string]string{nodeFile: strings.Replace(savedNode, "iptables", mode, 1), "a.yaml": savedObjects}
	switch mode {
	case "userspace":
		files[rulesFile4] = `*nat
:PREROUTING ACCEPT [0:0]
:KUBE-USP-X - [0:0]
-A PREROUTING -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j KUBE-USP-X
-A KUBE-USP-X -p tcp -j DNAT --to-destination 192.168.0.1:20001
COMMIT
`
		files[relayFile] = `[
 {"protocol": "TCP", "address": "192.168.0.1:20001", "namespace": "shop", "service": "web", "port": "http", "scope": "Cluster",
  "endpoints": [{"address": "10.244.1.11:8080", "weight": 1, "local": true}],
  "bound": [{"client": "10.244.1.7", "to": "10.244.1.11:8080", "left": "1m0s"}]},
 {"protocol": "TCP", "address": "127.0.0.1:30080", "namespace": "shop", "service": "web", "port": "http", "scope": "Cluster",
  "endpoints": [{"address": "10.244.1.11:8080", "weight": 1}]}
]
`
	case "ipvs":
		files[rulesFile4] = "*filter\n:INPUT ACCEPT [0:0]\nCOMMIT\n"
		files[serversFile] = "-A -t 10.96.0.10:80 -s wrr\n-a -t 10.96.0.10:80 -r 10.244.1.11:8080 -m -w 1\n-a -t 10.96.0.10:80 -r 10.244.1.12:8080 -m -w 0\n"
		files[countsFile] = "TCP  0A60000A:0050 wrr  \n  -> 0AF4010C:1F90      Masq    0      3          4         \n"
		files[localsFile] = "local 10.96.0.10 proto 86 scope host \nlocal 127.96.0.1 proto kernel scope host src 127.96.0.1 \n"
	}
	return files
}

func TestSavedOtherModes(t *testing.T) {
	for mode, notes := range map[string]string{
		"userspace": "[session affinity binds 10.244.1.7 to 10.244.1.11:8080 for 1m0s more]",
		"ipvs":      "[10.244.1.12:8080 of TCP 10.96.0.10:80 drains: it takes no new flows and has 7 connections (4 not established)]",
	} {
		s, err := OpenSaved(write(t, byHand(mode)))
		if err != nil {
			t.Fatal(err)
		}
		e, err := s.Explain(t.Context(), answer.Query{Source: "10.244.1.7", Destination: "10.96.0.10:80"})
		if err != nil || !e.Agree() || fmt.Sprint(e.Planes[0].Notes) != notes {
			t.Errorf("%s: %v, want it to agree, with the notes %s: %+v", mode, err, notes, e)
		}
		a, err := s.Audit(t.Context())
		if err != nil || a.Clean() || a.Failed() {
			t.Errorf("%s: %v, these are not our rules: %+v", mode, err, a)
		}
		e, err = s.Explain(t.Context(), answer.Query{Destination: "127.0.0.1:30080"})
		if mode == "userspace" && (err != nil || len(e.Planes) != 1 || e.Planes[0].Does[0].Endpoint != "10.244.1.11:8080") {
			t.Errorf("on loopback: %v: %+v", err, e)
		}
		if mode == "ipvs" && (err == nil || !strings.Contains(err.Error(), "relay.json is missing")) {
			t.Errorf("on loopback, of which nothing was saved: %v: %+v", err, e)
		}
	}
}

func TestSavedRefuses(t *testing.T) {
	good := map[string]string{nodeFile: savedNode, rulesFile4: savedRules, "a.yaml": savedObjects}
	for _, test := range []struct{ name, text, want string }{
		{nodeFile, "", "node.json is missing"},
		{nodeFile, "{", "read node.json"},
		{nodeFile, `{"mode": "iptables", "nodeName": "n"}`, `unknown field "nodeName"`},
		{nodeFile, "{\"mode\": \"iptables\",\n \"config\": 7}", "read node.json: line 2: "},
		{nodeFile, `{"mode": "userspace"}`, `relay.json is missing: "portwayctl dump" saves it on the node; by hand it is the output of "curl `},
		{nodeFile, `{"mode": "ipvs"}`, `ipvsadm.save is missing: "portwayctl dump" saves it on the node; by hand it is the output of "ipvsadm -Sn"`},
		{nodeFile, `{"mode": "nftables"}`, `the mode "nftables" is unknown`},
		{relayFile, "[\n {\"protocol\": \"ICMP\"}]", "read relay.json: line 2: "},
		{serversFile, "-A\n", "read ipvsadm.save: line 1 of the saved virtual servers: "},
		{localsFile, "x\n", "read kube-ipvs0.save: line 1 of the saved routes: "},
		{sysctlsFile, "x\n", "read sysctl.save: line 1 of the saved sysctls: "},
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
