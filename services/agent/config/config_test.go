package config

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/kube-proxy/config/v1alpha1"
)

const head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

var known = []string{"iptables", "ipvs", "userspace", "nftables"}

func TestDecodeStrict(t *testing.T) {
	for _, test := range []struct{ name, in, want string }{
		{"unknown field", head + "proxyMode: iptables\n", `unknown field "proxyMode"`},
		{"unknown nested field", head + "iptables: {masqBit: 3}\n", `unknown field "iptables.masqBit"`},
		{"every unknown field", head + "a: 1\nb: 2\n", `unknown field "b"`},
		{"wrong case", head + "Mode: iptables\n", `unknown field "Mode"`},
		{"twice", head + "mode: ipvs\nmode: iptables\n", `"mode" already set in map`},
		{"twice, nested", head + "ipvs:\n  scheduler: rr\n  scheduler: sh\n", `"scheduler" already set in map`},
		{"no kind", "mode: ipvs\n", `want "kubeproxy.config.k8s.io/v1alpha1" and "KubeProxyConfiguration"`},
		{"future version", strings.Replace(head, "v1alpha1", "v1alpha2", 1), `apiVersion "kubeproxy.config.k8s.io/v1alpha2"`},
		{"another kind", strings.Replace(head, "KubeProxy", "Kubelet", 1), `kind "KubeletConfiguration"`},
		{"wrong type", head + "mode: [iptables]\n", "cannot unmarshal"},
		{"wrong duration", head + "configSyncPeriod: soon\n", `invalid duration "soon"`},
		{"no YAML", head + "mode: [\n", "not valid YAML"},
		{"two documents", head + "---\n" + head, "2 documents"},
		{"nothing", "# only a comment\n---\n", "empty"},
	} {
		t.Run(test.name, func(t *testing.T) {
			cfg, err := Decode([]byte(test.in))
			if err == nil {
				t.Fatalf("accepted as %+v", cfg)
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %q does not say %q", err, test.want)
			}
		})
	}
}

func TestDecodeForms(t *testing.T) {
	for name, in := range map[string]string{
		"yaml":              head + "mode: ipvs\n",
		"json":              `{"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "ipvs"}`,
		"leading separator": "# from a ConfigMap\n---\n" + head + "mode: ipvs\n",
	} {
		cfg, err := Decode([]byte(in))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if cfg.Mode != "ipvs" || cfg.HealthzBindAddress != "0.0.0.0:10256" {
			t.Errorf("%s: read as %+v", name, cfg)
		}
	}
}

func TestEncodeIsReadBack(t *testing.T) {
	want := Default()
	want.Mode, want.NodePortAddresses = "iptables", []string{"primary", "10.0.0.0/8"}
	want.IPTables.MasqueradeAll = true
	data, err := Encode(want)
	if err != nil {
		t.Fatal(err)
	}
	have, err := Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	have.TypeMeta = want.TypeMeta
	if !reflect.DeepEqual(have, want) {
		t.Errorf("wrote\n%+v\nread\n%+v", want, have)
	}
}

func TestAddresses(t *testing.T) {
	for _, test := range []struct{ in, healthz, metrics string }{
		{"", "0.0.0.0:10256", "127.0.0.1:10249"},
		{"bindAddress: 10.1.2.3\n", "0.0.0.0:10256", "127.0.0.1:10249"},
		{"bindAddress: '::'\n", "[::]:10256", "[::1]:10249"},
		{"bindAddress: fd00::5\n", "[::]:10256", "[::1]:10249"},
		{"healthzBindAddress: 10.1.2.3\nmetricsBindAddress: '::'\n", "10.1.2.3:10256", "[::]:10249"},
		{"metricsBindAddress: 0.0.0.0:9999\n", "0.0.0.0:10256", "0.0.0.0:9999"},
	} {
		cfg, err := Decode([]byte(head + test.in))
		if err != nil {
			t.Errorf("%q: %v", test.in, err)
			continue
		}
		if cfg.HealthzBindAddress != test.healthz || cfg.MetricsBindAddress != test.metrics {
			t.Errorf("%q: %s and %s, want %s and %s", test.in, cfg.HealthzBindAddress, cfg.MetricsBindAddress, test.healthz, test.metrics)
		}
	}
}

func TestValidateDefaults(t *testing.T) {
	if errs := Validate(Default(), known); len(errs) > 0 {
		t.Error(errs.ToAggregate())
	}
	a := DefaultAgent()
	if errs := a.Validate(); len(errs) > 0 {
		t.Error(errs.ToAggregate())
	}
}

// TestValidate has a row for each field, and finds the error by its path.
func TestValidate(t *testing.T) {
	for _, test := range []struct{ in, path string }{
		{"mode: kernelspace", "mode"},
		{"iptables: {masqueradeBit: 32}", "iptables.masqueradeBit"},
		{"iptables: {masqueradeBit: -1}", "iptables.masqueradeBit"},
		{"nftables: {masqueradeBit: 32}", "nftables.masqueradeBit"},
		{"iptables: {syncPeriod: -1s}", "iptables.syncPeriod"},
		{"iptables: {minSyncPeriod: -1s}", "iptables.minSyncPeriod"},
		{"iptables: {minSyncPeriod: 1m}", "iptables.syncPeriod"},
		{"mode: ipvs\nipvs: {syncPeriod: -1s}", "ipvs.syncPeriod"},
		{"ipvs: {tcpTimeout: -1s}", "ipvs.tcpTimeout"},
		{"ipvs: {tcpFinTimeout: -1s}", "ipvs.tcpFinTimeout"},
		{"ipvs: {udpTimeout: -1s}", "ipvs.udpTimeout"},
		{"ipvs: {excludeCIDRs: [10.0.0.0/8, x]}", "ipvs.excludeCIDRs[1]"},
		{"configSyncPeriod: -1s", "configSyncPeriod"},
		{"conntrack: {maxPerCore: -1}", "conntrack.maxPerCore"},
		{"conntrack: {min: -1}", "conntrack.min"},
		{"conntrack: {tcpEstablishedTimeout: -1s}", "conntrack.tcpEstablishedTimeout"},
		{"conntrack: {tcpCloseWaitTimeout: -1s}", "conntrack.tcpCloseWaitTimeout"},
		{"conntrack: {udpTimeout: -1s}", "conntrack.udpTimeout"},
		{"conntrack: {udpStreamTimeout: -1s}", "conntrack.udpStreamTimeout"},
		{"bindAddress: node1", "bindAddress"},
		{"healthzBindAddress: 0.0.0.0:0", "healthzBindAddress"},
		{"healthzBindAddress: node1:80", "healthzBindAddress"},
		{"metricsBindAddress: 127.0.0.1:70000", "metricsBindAddress"},
		{"nodePortAddresses: [primary, primary]", "nodePortAddresses[1]"},
		{"nodePortAddresses: [10.0.0.1]", "nodePortAddresses[0]"},
		{"clusterCIDR: 10.0.0.0", "clusterCIDR"},
		{"clusterCIDR: '10.0.0.0/8,10.1.0.0/16'", "clusterCIDR"},
		{"detectLocalMode: Guess", "detectLocalMode"},
		{"detectLocalMode: BridgeInterface", "detectLocal.bridgeInterface"},
		{"detectLocalMode: InterfaceNamePrefix", "detectLocal.interfaceNamePrefix"},
		{"oomScoreAdj: 1001", "oomScoreAdj"},
		{"clientConnection: {burst: -1}", "clientConnection.burst"},
		{"logging: {format: xml}", "logging.format"},
	} {
		t.Run(test.in, func(t *testing.T) {
			cfg, err := Decode([]byte(head + test.in + "\n"))
			if err != nil {
				t.Fatal(err)
			}
			errs := Validate(cfg, known)
			if len(errs) != 1 || errs[0].Field != test.path {
				t.Errorf("errors %v, want one at %s", errs, test.path)
			}
		})
	}
}

func TestValidateReportsEveryError(t *testing.T) {
	cfg, err := Decode([]byte(head + "mode: x\noomScoreAdj: 2000\nclusterCIDR: y,z\n"))
	if err != nil {
		t.Fatal(err)
	}
	o := &Options{Proxy: cfg, Agent: Agent{ModeFallback: "perhaps", ExternalIPs: "some"}}
	err = o.Validate(known)
	for _, want := range []string{"mode", "oomScoreAdj", `"y"`, `"z"`, "--mode-fallback", "--external-ips", "--unallocated-service-ips"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no word of %s in: %v", want, err)
		}
	}
}

func TestClusterCIDRs(t *testing.T) {
	cfg := Default()
	cfg.ClusterCIDR = "010.244.3.0/16,fd00:10::5/64"
	var have []string
	for _, p := range ClusterCIDRs(cfg) {
		have = append(have, p.String())
	}
	if want := []string{"10.244.0.0/16", "fd00:10::/64"}; !slices.Equal(have, want) {
		t.Errorf("%v, want %v", have, want)
	}
}

// proxyFlags are all flags of kube-proxy 1.37 on Linux.
const proxyFlags = `config write-config-to cleanup init-only feature-gates kubeconfig master kube-api-content-type
kube-api-burst kube-api-qps hostname-override bind-address healthz-bind-address metrics-bind-address
bind-address-hard-fail profiling show-hidden-metrics-for-version proxy-mode iptables-masquerade-bit masquerade-all
iptables-localhost-nodeports iptables-sync-period iptables-min-sync-period ipvs-sync-period ipvs-min-sync-period
ipvs-scheduler ipvs-exclude-cidrs ipvs-strict-arp ipvs-tcp-timeout ipvs-tcpfin-timeout ipvs-udp-timeout
detect-local-mode pod-bridge-interface pod-interface-name-prefix cluster-cidr nodeport-addresses oom-score-adj
conntrack-max-per-core conntrack-min conntrack-tcp-timeout-established conntrack-tcp-timeout-close-wait
conntrack-tcp-be-liberal conntrack-udp-timeout conntrack-udp-timeout-stream config-sync-period healthz-port
metrics-port v vmodule logging-format log-flush-frequency log-text-split-stream log-text-info-buffer-size`

func parse(t *testing.T, args ...string) (*Options, error) {
	t.Helper()
	o := NewOptions()
	fs := pflag.NewFlagSet("portway", pflag.ContinueOnError)
	o.AddFlags(fs)
	for f := range strings.FieldsSeq(proxyFlags) {
		if fs.Lookup(f) == nil {
			t.Errorf("flag --%s of kube-proxy is missing", f)
		}
	}
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	return o, o.Complete(fs)
}

func TestFlagsSetFields(t *testing.T) {
	o, err := parse(t, "--proxy-mode=ipvs", "--cluster-cidr=10.0.0.0/8,fd00::/64", "--masquerade-all",
		"--nodeport-addresses=primary,127.0.0.0/8", "--iptables-masquerade-bit=3", "--healthz-bind-address=10.0.0.1",
		"--metrics-bind-address=[::]:99", "--conntrack-udp-timeout=5s", "--oom-score-adj=-5", "--hostname-override= Node-1 ",
		"--iptables-sync-period=10s", "--ipvs-sync-period=20s", "-v=5")
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Mode, want.ClusterCIDR, want.IPTables.MasqueradeAll = "ipvs", "10.0.0.0/8,fd00::/64", true
	want.NodePortAddresses = []string{"primary", "127.0.0.0/8"}
	*want.IPTables.MasqueradeBit, *want.OOMScoreAdj = 3, -5
	want.HealthzBindAddress, want.MetricsBindAddress, want.HostnameOverride = "10.0.0.1:10256", "[::]:99", "node-1"
	want.Conntrack.UDPTimeout.Duration = 5e9
	want.IPTables.SyncPeriod.Duration, want.IPVS.SyncPeriod.Duration = 10e9, 20e9
	want.Logging.Verbosity = 5
	if !reflect.DeepEqual(o.Proxy, want) {
		t.Errorf("flags gave\n%+v\nwant\n%+v", o.Proxy, want)
	}
	if sync, _ := SyncPeriod(o.Proxy); sync != 20e9 {
		t.Errorf("sync period %s, want that of the mode", sync)
	}
	if len(o.Warnings) > 0 {
		t.Errorf("warnings %q", o.Warnings)
	}
}

func TestFlagsRefuseWhatIsNoAddress(t *testing.T) {
	for _, arg := range []string{"--bind-address=node1", "--bind-address=10.0.0.1:80", "--healthz-bind-address=", "--metrics-bind-address=:80"} {
		if _, err := parse(t, arg); err == nil {
			t.Errorf("%s was accepted", arg)
		}
	}
}

func TestPortZeroIsNoServer(t *testing.T) {
	o, err := parse(t, "--healthz-port=0", "--metrics-port=0")
	if err != nil {
		t.Fatal(err)
	}
	if o.Proxy.HealthzBindAddress != "" || o.Proxy.MetricsBindAddress != "" {
		t.Errorf("addresses %q and %q, want none", o.Proxy.HealthzBindAddress, o.Proxy.MetricsBindAddress)
	}
	if err := o.Validate(known); err != nil {
		t.Error(err)
	}
}

// TestFileWarnings: a file of kubeadm's holds every field, most of them empty,
// and must not raise a warning for each.
func TestFileWarnings(t *testing.T) {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	if w := warnings(Default(), fs, true); len(w) > 0 {
		t.Errorf("the defaults raise %q", w)
	}
	cfg := Default()
	cfg.FeatureGates["X"], cfg.IPVS.StrictARP, cfg.PortRange = true, true, "1-2"
	cfg.Winkernel = v1alpha1.KubeProxyWinkernelConfiguration{EnableDSR: true}
	if w := warnings(cfg, fs, true); len(w) != 3 {
		t.Errorf("%d warnings, want 3: %q", len(w), w)
	}
}
