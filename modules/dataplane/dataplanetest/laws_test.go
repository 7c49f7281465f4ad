package dataplanetest

import (
	"os"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m)) }

// naiveConfig is of the naive plane, on nft: what a back end is does not matter to it.
func naiveConfig() Config {
	cfg := Config{Iptables: "nft", Budget: 2 * time.Second}
	cfg.Mode = naiveMode(cfg, "")
	cfg.OpenFaulty = func(fail func() error) Open { return openNaive(cfg, "", fail) }
	return cfg
}

func TestNaivePlaneObeysTheLaws(t *testing.T) { RunLaws(t, naiveConfig()) }

func TestNaivePlanePlaysTheScenarios(t *testing.T) {
	RunScenarios(t, naiveConfig())
}
