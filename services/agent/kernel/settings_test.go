package kernel

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-proxy/config/v1alpha1"

	"github.com/portway/portway/modules/dataplane"
)

// machine makes the files of a machine.
func machine(t *testing.T, files map[string]string) Machine {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Machine{root}
}

func (m Machine) content(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(m.Root, name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

func ptr[T any](v T) *T { return &v }

const (
	netfilter = "proc/sys/net/netfilter/nf_conntrack_"
	hashsize  = "sys/module/nf_conntrack/parameters/hashsize"
	oom       = "proc/self/oom_score_adj"
	online    = "sys/devices/system/cpu/online"
)

func TestSetConntrack(t *testing.T) {
	m := machine(t, map[string]string{
		netfilter + "max": "1000", netfilter + "tcp_timeout_established": "1", netfilter + "tcp_timeout_close_wait": "60",
		netfilter + "udp_timeout": "30", netfilter + "udp_timeout_stream": "120", netfilter + "tcp_be_liberal": "0",
		hashsize: "10", oom: "0", online: "0-3,8",
	})
	cfg := &v1alpha1.KubeProxyConntrackConfiguration{
		MaxPerCore: ptr[int32](1000), Min: ptr[int32](2000), TCPBeLiberal: true,
		TCPEstablishedTimeout: &metav1.Duration{Duration: time.Hour},
		UDPTimeout:            metav1.Duration{Duration: 10 * time.Second},
	}
	if m.ConntrackLiberal() {
		t.Error("liberal before it was told to be")
	}
	if errs := append(m.SetConntrack(cfg), m.SetOOMScore(-999)); len(errs) != 1 || errs[0] != nil {
		t.Fatal(errs)
	}
	for name, want := range map[string]string{
		netfilter + "max":                     "5000",
		hashsize:                              "1250",
		netfilter + "tcp_timeout_established": "3600",
		netfilter + "tcp_timeout_close_wait":  "60", // 0 and nil leave it
		netfilter + "udp_timeout":             "10",
		netfilter + "udp_timeout_stream":      "120",
		netfilter + "tcp_be_liberal":          "1",
		oom:                                   "-999",
	} {
		if have := m.content(t, name); have != want {
			t.Errorf("%s is %s, want %s", name, have, want)
		}
	}
	if !m.ConntrackLiberal() {
		t.Error("not liberal although it was told to be")
	}
}

func TestSetConntrackNeverLowersALimit(t *testing.T) {
	m := machine(t, map[string]string{netfilter + "max": "900000", hashsize: "300000", online: "0"})
	cfg := &v1alpha1.KubeProxyConntrackConfiguration{}
	cfg.MaxPerCore, cfg.Min = ptr[int32](100), ptr[int32](100)
	if errs := m.SetConntrack(cfg); len(errs) > 0 {
		t.Fatal(errs)
	}
	if n := m.content(t, netfilter+"max"); n != "900000" {
		t.Errorf("nf_conntrack_max was lowered to %s", n)
	}
}

// TestSetConntrackGoesOn: kubernetes#24027, a limit that cannot be written is no
// reason not to write the rest, or not to start.
func TestSetConntrackGoesOn(t *testing.T) {
	m := machine(t, map[string]string{netfilter + "udp_timeout": "30", netfilter + "max": "garbage", online: "0"})
	cfg := &v1alpha1.KubeProxyConntrackConfiguration{}
	cfg.MaxPerCore = ptr[int32](1000)
	cfg.UDPTimeout.Duration = 10 * time.Second
	errs := m.SetConntrack(cfg)
	if len(errs) != 2 || !strings.Contains(errs[1].Error(), "set /"+hashsize+" to 250: no such file or directory") {
		t.Errorf("errors %v, want one for the limit and one for the missing hash size", errs)
	}
	if n := m.content(t, netfilter+"udp_timeout"); n != "10" {
		t.Errorf("after a failure the timeout is %s, want 10", n)
	}
}

func TestConntrackMax(t *testing.T) {
	for _, test := range []struct {
		perCore, floor *int32
		cpus, want     int
	}{
		{nil, nil, 4, 0},
		{ptr[int32](0), ptr[int32](500), 4, 0}, // kubernetes: 0 ignores the minimum too
		{ptr[int32](100), nil, 4, 400},
		{ptr[int32](100), ptr[int32](500), 4, 500},
		{ptr[int32](32768), ptr[int32](131072), 256, 1 << 20},
	} {
		ct := &v1alpha1.KubeProxyConntrackConfiguration{MaxPerCore: test.perCore, Min: test.floor}
		if have := conntrackMax(ct, test.cpus); have != test.want {
			t.Errorf("%d cores: %d, want %d", test.cpus, have, test.want)
		}
	}
}

func TestFamilies(t *testing.T) {
	const inet6, disabled = "proc/net/if_inet6", "proc/sys/net/ipv6/conf/all/disable_ipv6"
	for name, test := range map[string]struct {
		files         map[string]string
		known, usable int
	}{
		"without IPv6":  {nil, 1, 1},
		"with IPv6":     {map[string]string{inet6: "", disabled: "0"}, 2, 2},
		"told to do so": {map[string]string{inet6: "", disabled: "1"}, 2, 1},
	} {
		m := machine(t, test.files)
		if known, usable := len(m.Families()), len(m.UsableFamilies()); known != test.known || usable != test.usable {
			t.Errorf("a kernel %s: %d families, %d of them usable", name, known, usable)
		}
	}
	m := machine(t, map[string]string{"proc/sys/net/ipv4/ip_forward": "0", "proc/sys/net/ipv6/conf/all/forwarding": "1"})
	if err := m.CheckForwarding(dataplane.IPv4); err == nil || !strings.Contains(err.Error(), "set net.ipv4.ip_forward=1") {
		t.Errorf("IPv4 is not forwarded, and the error is %v", err)
	}
	if err := m.CheckForwarding(dataplane.IPv6); err != nil {
		t.Error(err)
	}
}
