package cluster

import (
	"maps"
	"strings"
	"testing"

	"sigs.k8s.io/kind/pkg/apis/config/v1alpha4"
)

func TestValidate(t *testing.T) {
	good := Options{Proxy: Portway, Mode: "iptables", Family: "ipv4", Workers: 2}
	for _, tc := range []struct {
		name   string
		change func(*Options)
		want   string // part of the error; empty: none
	}{
		{"default", func(*Options) {}, ""},
		{"userspace", func(o *Options) { o.Mode = "userspace" }, ""},
		{"dual", func(o *Options) { o.Family = "dual" }, ""},
		{"control plane alone", func(o *Options) { o.Workers = 0 }, ""},
		{"kube-proxy in nftables mode", func(o *Options) { o.Proxy, o.Mode = KubeProxy, "nftables" }, ""},
		{"portway has no nftables mode", func(o *Options) { o.Mode = "nftables" }, `--mode "nftables" is not a mode of portway`},
		{"kube-proxy has no userspace mode", func(o *Options) { o.Proxy, o.Mode = KubeProxy, "userspace" }, `--mode "userspace"`},
		{"unknown proxy", func(o *Options) { o.Proxy = "envoy" }, `--proxy "envoy"`},
		{"unknown family", func(o *Options) { o.Family = "ipx" }, `--family "ipx"`},
		{"negative", func(o *Options) { o.Workers = -1 }, "--nodes -1"},
		{"too many", func(o *Options) { o.Workers = 21 }, "--nodes 21"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := good
			tc.change(&o)
			err := o.Validate()
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("Validate() = %v, want %q", err, tc.want)
			}
		})
	}
}

func TestCanBecome(t *testing.T) {
	is := Options{Portway, "iptables", "ipv4", 2}
	for _, c := range []struct {
		is, other Options
		want      bool
	}{
		{is, is, true},
		{is, Options{Portway, "userspace", "ipv4", 2}, true},
		{is, Options{Portway, "iptables", "dual", 2}, false},
		{is, Options{Portway, "iptables", "ipv4", 6}, false},
		{is, Options{KubeProxy, "iptables", "ipv4", 2}, false},
		{Options{KubeProxy, "iptables", "ipv4", 2}, Options{KubeProxy, "nftables", "ipv4", 2}, false},
	} {
		if got := c.is.CanBecome(c.other); got != c.want {
			t.Errorf("%s to %s: %t", c.is, c.other, got)
		}
	}
}

func TestConfig(t *testing.T) {
	o := Options{Proxy: Portway, Mode: "iptables", Family: "dual", Workers: 2}
	plain := Config(o, Machine{})
	if plain.Networking.DisableDefaultCNI || len(plain.KubeadmConfigPatches) != 0 {
		t.Errorf("with a registry the cluster is not plain kind: %+v", plain)
	}
	if len(plain.Nodes) != 3 || plain.Nodes[0].Role != v1alpha4.ControlPlaneRole || plain.Nodes[2].Role != v1alpha4.WorkerRole || plain.Nodes[0].Image != "" {
		t.Errorf("nodes are %+v", plain.Nodes)
	}
	if plain.Networking.KubeProxyMode != "none" {
		t.Errorf("kube-proxy mode is %q beside the agent", plain.Networking.KubeProxyMode)
	}
	offline := Config(o, Machine{Image: "node:x", Offline: true, CgroupV1: true})
	if !offline.Networking.DisableDefaultCNI || offline.Nodes[2].Image != "node:x" {
		t.Errorf("offline cluster is %+v", offline)
	}
	if p := offline.KubeadmConfigPatches; len(p) != 1 || !strings.Contains(p[0], "failCgroupV1: false") {
		t.Errorf("patches for cgroup v1 are %q", p)
	}
	o.Proxy, o.Mode = KubeProxy, "ipvs"
	if got := Config(o, Machine{}).Networking.KubeProxyMode; got != "ipvs" {
		t.Errorf("kube-proxy mode is %q", got)
	}
}

// Specs about zones need two workers in each of three, and a node in none.
func TestZones(t *testing.T) {
	c := Config(Options{Proxy: Portway, Mode: "iptables", Family: "ipv4", Workers: 6}, Machine{})
	workers := map[string]int{}
	for _, n := range c.Nodes {
		workers[n.Labels["topology.kubernetes.io/zone"]]++
	}
	if want := map[string]int{"": 1, "zone-a": 2, "zone-b": 2, "zone-c": 2}; !maps.Equal(workers, want) {
		t.Errorf("nodes by zone are %v, want %v", workers, want)
	}
}

func TestServiceSubnets(t *testing.T) {
	for family, want := range map[string]string{"ipv4": ServiceCIDR4, "ipv6": ServiceCIDR6, "dual": ServiceCIDR4 + "," + ServiceCIDR6} {
		c := Config(Options{Proxy: Portway, Mode: "iptables", Family: family}, Machine{})
		if c.Networking.ServiceSubnet != want || string(c.Networking.IPFamily) != family {
			t.Errorf("%s: Services in %s, family %s", family, c.Networking.ServiceSubnet, c.Networking.IPFamily)
		}
	}
}
