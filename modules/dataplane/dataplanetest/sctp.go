package dataplanetest

import (
	"errors"
	"testing"

	"github.com/portway/portway/modules/dataplane"
)

// threeProtocols is one port number under three protocols.
const threeProtocols = `
node detect=ClusterCIDR
web:a TCP 80->8080 ips=10.96.0.10,fd00:96::10 nodePort=30080 endpoints=e1,remote
web:b UDP 80->8080 ips=10.96.0.10,fd00:96::10 nodePort=30080 endpoints=e1,remote
web:c SCTP 80->8080 ips=10.96.0.10,fd00:96::10 nodePort=30080 loadBalancers=198.51.100.10,fd00:98::10 sourceRanges=203.0.113.0/24,fd00:203::/64 endpoints=e1,remote
`

// sctp is law 7 for SCTP: it is forwarded, or refused and reported where the mode
// declares that it cannot, and what else there is works in either case. It is
// judged by what the kernel would do: few kernels have sockets of SCTP, and all
// have rules for it.
func sctp(t *testing.T, cfg Config) {
	t.Parallel()
	state, err := ParseState(threeProtocols)
	if err != nil {
		t.Fatal(err)
	}
	b := newBed(t, cfg, state)
	b.aim(state)
	reports, err := b.sync(false)
	if err != nil {
		t.Fatal(err)
	}
	has := cfg.Mode.Has(dataplane.ForwardSCTP)
	for f, r := range reports {
		failed := 0
		for _, fail := range r.Failed {
			if fail.Name.Protocol != dataplane.SCTP || !errors.Is(fail.Err, errors.ErrUnsupported) {
				t.Errorf("%s: %s could not be programmed: %v", f, fail.Name, fail.Err)
			}
			failed++
		}
		if has != (failed == 0) {
			t.Errorf("%s: %d ServicePorts fail, and the mode declares that it forwards SCTP: %t", f, failed, has)
		}
	}
	if found, err := b.audit(); err != nil || len(found) > 0 {
		t.Errorf("audit finds %v, %v", found, err)
	}
	shots := b.shots()
	b.checkExplained(spread(shots, mostExplains(len(shots))))
	var others []Shot
	for _, s := range shots {
		if s.Flow.Protocol != dataplane.SCTP {
			others = append(others, s)
		}
	}
	b.checkArrivals(others)
}
