package dataplanetest

import (
	"os"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m)) }

func TestNaivePlaneObeysTheLaws(t *testing.T) {
	RunLaws(t, Config{
		Mode:       naiveMode(""),
		Budget:     3 * time.Second,
		OpenFaulty: func(fail func() error) Open { return openNaive("", fail) },
	})
}

func TestNaivePlanePlaysTheScenarios(t *testing.T) {
	RunScenarios(t, Config{Mode: naiveMode("")})
}
