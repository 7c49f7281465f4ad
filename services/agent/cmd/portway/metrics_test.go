package main

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

// kubeProxyMetrics are those that kube-proxy 1.37 has in its iptables mode, by
// the reference of Kubernetes' metrics.
const kubeProxyMetrics = `
kubeproxy_conntrack_reconciler_deleted_entries_total
kubeproxy_conntrack_reconciler_sync_duration_seconds
kubeproxy_iptables_ct_state_invalid_dropped_packets_total
kubeproxy_iptables_localhost_nodeports_accepted_packets_total
kubeproxy_network_programming_duration_seconds
kubeproxy_proxy_healthz_total
kubeproxy_proxy_livez_total
kubeproxy_sync_full_proxy_rules_duration_seconds
kubeproxy_sync_partial_proxy_rules_duration_seconds
kubeproxy_sync_proxy_rules_duration_seconds
kubeproxy_sync_proxy_rules_endpoint_changes_pending
kubeproxy_sync_proxy_rules_endpoint_changes_total
kubeproxy_sync_proxy_rules_iptables_last
kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total
kubeproxy_sync_proxy_rules_iptables_restore_failures_total
kubeproxy_sync_proxy_rules_iptables_total
kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds
kubeproxy_sync_proxy_rules_last_timestamp_seconds
kubeproxy_sync_proxy_rules_no_local_endpoints_total
kubeproxy_sync_proxy_rules_service_changes_pending
kubeproxy_sync_proxy_rules_service_changes_total
rest_client_requests_total
rest_client_request_duration_seconds
process_start_time_seconds
go_goroutines
`

// TestMetrics asks for what dashboards of kube-proxy ask for, when things have
// happened that are counted.
func TestMetrics(t *testing.T) {
	s := newSite(t)
	e1, e2 := s.rig.Endpoints[0], s.rig.Endpoints[1]
	e1.Serve(t, rig.TCP, 8080)
	e2.Serve(t, rig.TCP, 8080)
	s.set(thisNode(), web(), endpoints(e1))
	s.start("--detect-local-mode=NodeCIDR", "--iptables-min-sync-period=10ms", "--iptables-sync-period=1s")
	s.eventuallyAnswers(healthz, 200)
	s.eventuallyAnswers(livez, 200)
	s.set(endpoints(e2)) // a partial Sync, with a stamp
	s.eventuallyReaches(e2)
	for name := range strings.FieldsSeq(kubeProxyMetrics) {
		s.eventually(name+" is told", func() (bool, string) {
			_, all := s.get(status + "/metrics")
			return strings.Contains(all, "\n# TYPE "+name+" "), all
		})
	}
	if n := s.metric("kubeproxy_sync_proxy_rules_service_changes_total"); n != "1" {
		t.Errorf("%s Services were sent, want 1", n)
	}
	if n := s.metric("kubeproxy_sync_proxy_rules_endpoint_changes_total"); n != "2" {
		t.Errorf("%s EndpointSlices were sent, want 2", n)
	}
	s.get(status + "/healthz")
	_, slis := s.get(status + "/metrics/slis")
	for _, line := range []string{`kubernetes_healthcheck{name="ping",type="healthz"} 1`, `kubernetes_healthchecks_total{name="proxy",status="success",type="livez"}`} {
		if !strings.Contains(slis, line) {
			t.Errorf("/metrics/slis does not say %s:\n%s", line, slis)
		}
	}

	if n := s.metric("kubeproxy_iptables_ct_state_invalid_dropped_packets_total"); n != "0" {
		t.Errorf("%s INVALID packets before there was one", n)
	}
	sendInvalid(t, s.rig.Client, e2)
	s.eventually("the INVALID packet is counted", func() (bool, string) {
		n := s.metric("kubeproxy_iptables_ct_state_invalid_dropped_packets_total")
		return n == "1", n
	})
}

// sendInvalid sends what conntrack calls INVALID: a TCP segment with a wrong
// checksum.
func sendInvalid(t *testing.T, from, to *rig.Host) {
	t.Helper()
	segment := make([]byte, 20)
	segment[12] = 5 << 4 // words of its header
	err := from.Do(func() error {
		conn, err := net.DialIP("ip4:tcp", nil, &net.IPAddr{IP: to.Addr4.AsSlice()})
		if err != nil {
			return err
		}
		_, err = conn.Write(segment)
		return errors.Join(err, conn.Close())
	})
	if err != nil {
		t.Fatalf("send an invalid segment: %v", err)
	}
}
