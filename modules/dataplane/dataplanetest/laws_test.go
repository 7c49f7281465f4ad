package dataplanetest

import (
	"os"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m)) }

func onBackends(t *testing.T, test func(*testing.T, Config)) {
	OnBackends(t, func(t *testing.T, backend string) {
		cfg := Config{Iptables: backend, Budget: 2 * time.Second}
		cfg.Mode = naiveMode(cfg, "")
		cfg.OpenFaulty = func(fail func() error) Open { return openNaive(cfg, "", fail) }
		test(t, cfg)
	})
}

func TestNaivePlaneObeysTheLaws(t *testing.T) { onBackends(t, RunLaws) }

func TestNaivePlanePlaysTheScenarios(t *testing.T) {
	onBackends(t, func(t *testing.T, cfg Config) { RunScenarios(t, cfg) })
}
