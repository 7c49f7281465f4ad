package servicecache

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/portway/portway/modules/dataplane"
)

func equal[T comparable](a, b []T) bool { return slices.Equal(a, b) }

func testCIDR(cidrs ...string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
}

func externalIPs(ips ...string) serviceOption {
	return func(s *corev1.Service) { s.Spec.ExternalIPs = ips }
}

func ingress(ips ...string) serviceOption {
	return func(s *corev1.Service) {
		for _, ip := range ips {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
		}
	}
}

func nodePort(n int32) serviceOption { return func(s *corev1.Service) { s.Spec.Ports[0].NodePort = n } }

// One address, port and protocol wanted twice: ClusterIP before LB IP before
// externalIP before NodePort, then the older, then the name.
// Proves S1.9.
func TestConflicts(t *testing.T) {
	vip := func(last string) serviceOption { return clusterIPs("10.96.1." + last) }
	for name, tt := range map[string]struct {
		a, b *corev1.Service
		at   string // who is asked
		want string // who answers
		lost string // what the loser is told
	}{
		"ClusterIP before LB IP, though younger": {
			testService("a", vip("1"), createdAt(9)), testService("b", vip("2"), createdAt(1), ingress("10.96.1.1")),
			"pod 10.96.1.1:80", "a", "ns/b: status.loadBalancer.ingress: LoadBalancerIP 10.96.1.1:80/TCP is not served: ns/a/TCP as ClusterIP has it",
		},
		"LB IP before externalIP, though younger": {
			testService("a", vip("1"), createdAt(9), ingress(lbIP)), testService("b", vip("2"), createdAt(1), externalIPs(lbIP)),
			"out " + lbIP + ":80", "a", "ns/b: spec.externalIPs: ExternalIP " + lbIP + ":80/TCP is not served: ns/a/TCP as LoadBalancerIP has it",
		},
		"then the older": {
			testService("a", vip("1"), createdAt(9), externalIPs(extIP)), testService("b", vip("2"), createdAt(1), externalIPs(extIP)),
			"out " + extIP + ":80", "b", "ns/a: spec.externalIPs: ExternalIP " + extIP + ":80/TCP is not served: ns/b/TCP as ExternalIP has it",
		},
		"then the name": {
			testService("b", vip("2"), nodePort(30000)), testService("a", vip("1"), nodePort(30000)),
			"out 192.168.0.1:30000", "a", "ns/b: spec.ports.nodePort: NodePort IPv4 *:30000/TCP is not served: ns/a/TCP as NodePort has it",
		},
		"an exact address before NodePorts": {
			testService("a", vip("1"), createdAt(1), nodePort(80)), testService("b", vip("2"), createdAt(9), externalIPs(nodeIP4)),
			"out 192.168.0.1:80", "b", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, order := range [][]any{{tt.a, tt.b}, {tt.b, tt.a}} {
				c := newCache(t, testConfig(), order...)
				s, problems := c.Build(time.Time{})
				if got := winner(t, s, tt.at); got != tt.want {
					t.Errorf("%s answers, want %s", got, tt.want)
				}
				var told []string
				for _, p := range problems {
					told = append(told, strings.TrimPrefix(p.String(), "Service "))
				}
				if got := strings.Join(told, "\n"); got != tt.lost {
					t.Errorf("told:\n%s\nwant:\n%s", got, tt.lost)
				}
				if _, again := c.Build(time.Time{}); len(again) > 0 {
					t.Errorf("told again: %v", again)
				}
			}
		})
	}
}

func winner(t *testing.T, s *dataplane.Snapshot, at string) string {
	t.Helper()
	v := s.Decide(flow(t, at))
	if v.ServicePort == nil {
		return "nobody"
	}
	return v.ServicePort.Name.Name
}

// When a winner goes, the next in line answers; when a better one comes, it
// takes over.
// Proves S1.9.
func TestConflictFollowsTheWinner(t *testing.T) {
	mk := func(name, vip string, age int64, o ...serviceOption) *corev1.Service {
		return testService(name, append(o, clusterIPs(vip), createdAt(age), externalIPs(extIP))...)
	}
	a, b, c := mk("a", "10.96.1.1", 3), mk("b", "10.96.1.2", 2), mk("c", "10.96.1.3", 1)
	cache := newCache(t, testConfig(), a, b, c)
	at := "out " + extIP + ":80"
	step := func(want string) {
		t.Helper()
		if got := winner(t, build(cache), at); got != want {
			t.Errorf("%s answers, want %s", got, want)
		}
	}
	step("c")
	cache.DeleteService(dataplane.ServiceName{Namespace: "ns", Name: "c"})
	step("b")
	set(t, cache, mk("a", "10.96.1.1", 3, ingress(extIP)))
	step("a")
	set(t, cache, mk("a", "10.96.1.1", 3, ports(corev1.ServicePort{Port: 81})))
	step("b")
	set(t, cache, mk("b", "10.96.1.2", 2, label(proxyNameLabel, "x")))
	step("nobody")
	set(t, cache, c)
	step("c")
}

// An address that is LB IP and externalIP of one Service is an LB IP.
// Proves S1.10.
func TestLoadBalancerIPAndExternalIPOfOneService(t *testing.T) {
	s, problems := newCache(t, testConfig(), testService("s", ingress(lbIP), externalIPs(lbIP, lbIP), sourceRanges("10.0.0.0/8"))).Build(time.Time{})
	v := s.Decide(flow(t, "out "+lbIP+":80"))
	if v.Frontend == nil || v.Frontend.Kind != dataplane.LoadBalancerIP || v.Action != dataplane.Drop {
		t.Errorf("verdict %s, want the source ranges to drop it", v)
	}
	if len(problems) > 0 {
		t.Errorf("told %v", problems)
	}
}
