package dataplanetest

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
)

// servicesVariable names a variable of the environment: with how many Services the
// law about scale is tried.
const servicesVariable = "PORTWAY_TEST_SERVICES"

// endpointsOfEach is how many endpoints each of many Services has.
const endpointsOfEach = 5

// bounds are what audits and repairs may take.
type bounds struct{ audit, repair time.Duration }

func boundsOf(services int) bounds {
	if services <= 1000 {
		return bounds{2 * time.Second, 5 * time.Second}
	}
	return bounds{4 * time.Second, 10 * time.Second}
}

// RunScale holds a mode that is for use to laws about many Services and clients.
func RunScale(t *testing.T, cfg Config) {
	for law, test := range map[string]func(*testing.T, Config){"scale": scale, "clients": clients} {
		t.Run(law, func(t *testing.T) { test(t, cfg) })
	}
}

// scale is laws 1 and 2 with many Services, within bounds of time: an audit, and
// the repair after an operator has flushed what the mode made.
// Proves S9.4.
func scale(t *testing.T, cfg Config) {
	services := 1000
	if text := os.Getenv(servicesVariable); text != "" {
		var err error
		if services, err = strconv.Atoi(text); err != nil || services < 1 || services > 10_000 {
			t.Fatalf("%s=%s: want a number from 1 to 10000", servicesVariable, text)
		}
	}
	limit := boundsOf(services)
	f := cfg.families()[0]
	cfg.Families = []dataplane.Family{f}
	b := syncedBed(t, cfg, "node detect=ClusterCIDR\n")
	e := b.want.Edit()
	for i := range services {
		e.Put(oneOfMany(f, i))
	}
	var err error
	if b.want, err = e.Build(); err != nil {
		t.Fatal(err)
	}
	timed(t, "the first sync", time.Minute, func() {
		if reports, err := b.sync(false); err != nil || len(reports[f].Failed) > 0 {
			t.Fatalf("sync: %v, failed %v", err, reports[f].Failed)
		}
	})
	timed(t, "an audit of what nobody has written to", limit.audit, b.checkAudit)
	b.mustRun(cfg.tool(f, ""), "-w", "-A", "INPUT", "-s", ofFamily(f, "192.0.2.77", "2001:db8::77"), "-j", "DROP")
	timed(t, "an audit after somebody has written", limit.audit, b.checkAudit)
	wipes := append([][]string{{cfg.tool(f, ""), "-w", "-t", "nat", "-F"}}, cfg.Wipes...)
	for _, wipe := range wipes {
		b.mustRun(wipe...)
		timed(t, fmt.Sprintf("the repair after %q", wipe), limit.repair, func() {
			if reports, err := b.sync(true); err != nil || len(reports[f].Failed) > 0 || len(reports[f].Repaired) == 0 {
				t.Fatalf("sync: %v, failed %v, %d repaired", err, reports[f].Failed, len(reports[f].Repaired))
			}
		})
		b.checkAudit()
	}
}

// timed holds f to a limit and tells what it took.
func timed(t *testing.T, what string, limit time.Duration, f func()) {
	t.Helper()
	start := time.Now()
	f()
	took := time.Since(start).Round(time.Millisecond)
	t.Logf("%s took %v", what, took)
	if took > limit {
		t.Errorf("%s took %v, more than %v", what, took, limit)
	}
}

// oneOfMany is a Service with a ClusterIP and endpoints on other nodes.
func oneOfMany(f dataplane.Family, i int) *dataplane.ServicePort {
	pool := &dataplane.Pool{Family: f}
	for j := range endpointsOfEach {
		to := netip.AddrPortFrom(nth(netip.MustParseAddr(ofFamily(f, "10.128.0.0", "fd00:128::")), i*endpointsOfEach+j+1), 8080)
		pool.Endpoints = append(pool.Endpoints, dataplane.Endpoint{Addr: to, Weight: 1})
	}
	to := func(m dataplane.Masquerade) dataplane.Route {
		return dataplane.Route{Action: dataplane.Forward, Pool: pool, Masquerade: m}
	}
	return &dataplane.ServicePort{
		Name:  dataplane.ServicePortName{Namespace: "many", Name: fmt.Sprintf("service-%05d", i), Protocol: dataplane.TCP},
		Pools: []*dataplane.Pool{pool},
		Frontends: []*dataplane.Frontend{{
			Kind: dataplane.ClusterIP, Family: f, Port: 80,
			Addr: nth(netip.MustParseAddr(ofFamily(f, "10.96.64.0", "fd00:96::1:0:0")), i+1),
			Routes: [3]dataplane.Route{
				dataplane.FromPod: to(dataplane.MasqueradeNo), dataplane.FromNode: to(dataplane.MasqueradeEither),
				dataplane.FromOutside: to(dataplane.MasqueradeYes),
			},
		}},
	}
}
