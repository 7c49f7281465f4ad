package servicecache

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

const (
	both   = "10.244.1.1:8080 10.244.2.2:8080"
	local1 = "10.244.1.1:8080"
	far2   = "10.244.2.2:8080"
)

func frontends() map[string]string {
	return map[string]string{"ClusterIP": vip4 + ":80", "LB": lbIP + ":80", "externalIP": extIP + ":80", "NodePort": nodeIP4 + ":30080"}
}

// table checks rows "frontends | pod | far | node | out"; far is a pod of
// another node, "external" is all but ClusterIP.
func table(t *testing.T, c *Cache, rows string) {
	t.Helper()
	s := build(c)
	for _, row := range lines(rows) {
		cells := strings.Split(row, "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		names := []string{cells[0]}
		if cells[0] == "external" {
			names = []string{"LB", "externalIP", "NodePort"}
		}
		for _, name := range names {
			for i, origin := range []string{"pod", "far", "node", "out"} {
				want := cells[i+1]
				for short, long := range map[string]string{"both": both, "local": local1, "remote": far2} {
					want = strings.Replace(want, short, long, 1)
				}
				t.Run(name+" from "+origin, func(t *testing.T) { expect(t, s, origin+" "+frontends()[name]+" => "+want) })
			}
		}
	}
}

// Proves S3.1, S3.2, S3.3, S3.4, S3.5, S3.6, S3.7, S3.8.
func TestThreeOrigins(t *testing.T) {
	none := func(*Config) {}
	noDetector := func(c *Config) { c.DetectLocal = DetectNone }
	for name, tt := range map[string]struct {
		config func(*Config)
		want   string
		with   []serviceOption
	}{
		"internalTrafficPolicy and externalTrafficPolicy Cluster": {none, `
			ClusterIP | both masq=no | both masq=no | both masq=either | both masq=yes
			external  | both masq=yes | both masq=yes | both masq=yes | both masq=yes`, nil},
		"internalTrafficPolicy Local is for ClusterIPs (k8s#57678)": {none, `
			ClusterIP | local masq=no | local masq=no | local masq=either | local masq=yes
			external  | both masq=yes | both masq=yes | both masq=yes | both masq=yes`, []serviceOption{internalLocal}},
		"externalTrafficPolicy Local: who is in the cluster is internal (k8s#92761)": {none, `
			ClusterIP | both masq=no | both masq=no | both masq=either | both masq=yes
			external  | both masq=no | both masq=yes | both masq=yes | local masq=no`, []serviceOption{externalLocal}},
		"both Local: in-cluster traffic to an external address sees the Cluster set": {none, `
			ClusterIP | local masq=no | local masq=no | local masq=either | local masq=yes
			external  | both masq=no | both masq=yes | both masq=yes | local masq=no`, []serviceOption{internalLocal, externalLocal}},
		"no detector: nobody is a pod": {noDetector, `
			ClusterIP | both masq=no | both masq=no | both masq=either | both masq=no
			external  | local masq=no | local masq=no | both masq=yes | local masq=no`, []serviceOption{externalLocal}},
		"masqueradeAll": {func(c *Config) { c.MasqueradeAll = true }, `
			ClusterIP | both masq=yes | both masq=yes | both masq=yes | both masq=yes
			external  | both masq=no | both masq=yes | both masq=yes | local masq=no`, []serviceOption{externalLocal}},
		"NodeCIDR: this node's pods only": {func(c *Config) { c.DetectLocal = DetectNodeCIDR }, `
			ClusterIP | both masq=no | both masq=yes | both masq=either | both masq=yes
			external  | both masq=no | local masq=no | both masq=yes | local masq=no`, []serviceOption{externalLocal}},
		"InterfaceNamePrefix: this node's pods only": {func(c *Config) { c.DetectLocal, c.Interface = DetectInterfaceNamePrefix, "veth" }, `
			ClusterIP | both masq=no | both masq=yes | both masq=either | both masq=yes
			external  | both masq=no | local masq=no | both masq=yes | local masq=no`, []serviceOption{externalLocal}},
		"BridgeInterface: the whole name": {func(c *Config) { c.DetectLocal, c.Interface = DetectBridgeInterface, "veth" }, `
			ClusterIP | both masq=yes | both masq=yes | both masq=either | both masq=yes
			external  | local masq=no | local masq=no | both masq=yes | local masq=no`, []serviceOption{externalLocal}},
		"externalTrafficPolicy counts for a ClusterIP Service with externalIPs": {
			none, `
			external  | both masq=no | both masq=yes | both masq=yes | local masq=no`,
			[]serviceOption{externalLocal, func(s *corev1.Service) { s.Spec.Type = "ClusterIP" }},
		},
	} {
		t.Run(name, func(t *testing.T) {
			config := testConfig()
			tt.config(&config)
			with := append([]serviceOption{exposed}, tt.with...)
			table(t, newCache(t, config, testService("s", with...), testSlice("s", "1", ep(e1, "n1", "rs-"), ep(e2, "n2", "rs-"))), tt.want)
		})
	}
}

// externalTrafficPolicy says nothing for a ClusterIP Service without
// externalIPs, even if its status has an LB IP.
// Proves S3.7.
func TestExternalPolicyOfClusterIPService(t *testing.T) {
	s := testService("s", externalLocal, ingress(lbIP))
	expect(t, build(newCache(t, testConfig(), s, testSlice("s", "1", ep(e1, "n1", "rs-"), ep(e2, "n2", "rs-")))),
		"out "+lbIP+":80 => "+both+" masq=yes")
}

// Proves S2.8, S4.1, S4.2, S4.3, kpng#229.
func TestNoneLeft(t *testing.T) {
	drop := func(c *Config) { c.DropEmptyLocal = true }
	keep := func(*Config) {}
	for name, tt := range map[string]struct {
		config func(*Config)
		conds  string // of the endpoint on this node, and of the one elsewhere
		want   string
		with   []serviceOption
	}{
		"nowhere: reject every frontend and origin (k8s#17359, kpng PR 229)": {keep, "--- -s-", `
			ClusterIP | reject | reject | reject | reject
			external  | reject | reject | reject | reject`, nil},
		"nowhere, Local policies: reject too": {drop, "--- -s-", `
			ClusterIP | reject | reject | reject | reject
			external  | reject | reject | reject | reject`, []serviceOption{internalLocal, externalLocal}},
		"not here: internal rejects, outside drops (k8s#121371)": {keep, "--- rs-", `
			ClusterIP | reject | reject | reject | reject
			external  | remote masq=no | remote masq=yes | remote masq=yes | drop`, []serviceOption{internalLocal, externalLocal}},
		"not here: a setting restores the drop": {drop, "--- rs-", `
			ClusterIP | drop | drop | drop | drop
			external  | remote masq=no | remote masq=yes | remote masq=yes | drop`, []serviceOption{internalLocal, externalLocal}},
		"Local is cut first, then the fall-back applies": {keep, "-st rs-", `
			ClusterIP | local masq=no | local masq=no | local masq=either | local masq=yes
			external  | remote masq=no | remote masq=yes | remote masq=yes | local masq=no`, []serviceOption{internalLocal, externalLocal}},
		"the fall-back is not for other nodes' under Local": {keep, "--- -st", `
			ClusterIP | reject | reject | reject | reject
			external  | remote masq=no | remote masq=yes | remote masq=yes | drop`, []serviceOption{internalLocal, externalLocal}},
	} {
		t.Run(name, func(t *testing.T) {
			config := testConfig()
			tt.config(&config)
			here, there, _ := strings.Cut(tt.conds, " ")
			with := append([]serviceOption{exposed}, tt.with...)
			table(t, newCache(t, config, testService("s", with...), testSlice("s", "1", ep(e1, "n1", here), ep(e2, "n2", there))), tt.want)
		})
	}
}

// Hairpin: an endpoint that reaches itself is masqueraded, exactly then
// (kubernetes#20475).
// Proves S3.9.
func TestHairpin(t *testing.T) {
	s := build(newCache(t, testConfig(), testService("s"), testSlice("s", "1", ep("10.244.1.9", "n1", "rs-"))))
	expect(t, s, "pod 10.96.0.10:80 => 10.244.1.9:8080 masq=yes")
}
