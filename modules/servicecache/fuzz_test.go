package servicecache

import (
	"encoding/json"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/portway/portway/modules/dataplane"
)

// kubernetes-retired and others crashed on a nil in an EndpointSlice
// (kube-router#1583, ingress-nginx#9550): no object makes the cache panic,
// spoils what a good Service asks, or gets an invalid ServicePort into a
// snapshot.
func FuzzObjects(f *testing.F) {
	seed := func(os ...any) {
		var texts [4][]byte
		for i, o := range os {
			text, err := json.Marshal(o)
			if err != nil {
				f.Fatal(err)
			}
			texts[i] = text
		}
		f.Add(texts[0], texts[1], texts[2], texts[3])
	}
	seed(testService("x", exposed, internalLocal, externalLocal, sourceRanges("10.0.0.0/8", "foo")), testSlice("x", "1", ep(e1, "n1", "rs-", "zone:a", "n1")), testNode(), testCIDR("10.96.0.0/16"))
	seed(testService("s", clusterIPs("fd00::1", "010.0.0.1"), clientIP(nil)), testSlice("good", "1", ep("::1", "", "???")), &corev1.Node{}, &networkingv1.ServiceCIDR{})
	f.Add([]byte(`{"metadata":{"name":"s","namespace":"ns"},"spec":{"ports":[{},{"port":-1},{"port":70000,"nodePort":-5}],"clusterIPs":["","None","10.0.0.1"],"sessionAffinityConfig":{"clientIP":{}},"sessionAffinity":"ClientIP"},"status":{"loadBalancer":{"ingress":[{}]}}}`),
		[]byte(`{"metadata":{"labels":{"kubernetes.io/service-name":"s"}},"addressType":"IPv4","ports":[{},{"name":null,"port":8080,"protocol":"X"}],"endpoints":[{},{"addresses":[]},{"addresses":[""],"hints":{"forZones":[{}],"forNodes":[{}]}}]}`),
		[]byte(`{"metadata":{"name":"n1"},"spec":{"podCIDR":"x","podCIDRs":["y","10.0.0.0/8"],"taints":[{}]},"status":{"addresses":[{},{"type":"InternalIP","address":"z"}]}}`),
		[]byte(`{"spec":{"cidrs":["","10.0.0.0/8","::/0"]}}`))
	f.Fuzz(func(t *testing.T, service, slice, node, cidr []byte) {
		c := newCache(t, testConfig(), testService("good", clusterIPs("10.96.77.77"), createdAt(-1<<40)))
		c.SetEndpointSlice(changed(testSlice("good", "good", ep(e1, "n1", "rs-")), func(s *discoveryv1.EndpointSlice) { s.Namespace = "other" }))
		read(service, c.SetService)
		read(slice, c.SetEndpointSlice)
		read(node, c.SetNode)
		read(cidr, c.SetServiceCIDR)
		s, problems := c.Build(time.Time{})
		for _, p := range problems {
			if p.Reason == NotProgrammable {
				t.Errorf("invalid: %s", p.Message)
			}
			_ = p.String()
		}
		for sp := range s.ServicePorts() {
			for _, fe := range sp.Frontends {
				for _, o := range dataplane.Origins() {
					_ = fe.Routes[o].Action.String()
				}
			}
		}
		if a := netip.MustParseAddr("10.96.77.77"); !s.IsClusterIP(a) && !replaced(service, "good") {
			t.Error("the good Service is gone")
		}
		c.DeleteEndpointSlice("ns", "1")
		c.DeleteService(dataplane.ServiceName{Namespace: "ns", Name: "s"})
		build(c)
	})
}

// read gives to the cache what can be read of an object.
func read[T any](text []byte, to func(*T)) {
	o := new(T)
	_ = json.Unmarshal(text, o) // fields of a wrong type stay empty
	to(o)
}

func replaced(text []byte, name string) bool {
	var s corev1.Service
	_ = json.Unmarshal(text, &s)
	return s.Name == name && s.Namespace == "ns"
}
