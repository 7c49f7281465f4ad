package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

func TestMain(m *testing.M) {
	testscript.Main(isolated{m}, map[string]func(){"portway": main})
}

// isolated runs the tests, and with them the program, in a network namespace
// of their own.
type isolated struct{ m *testing.M }

func (i isolated) Run() int { return rig.Main(i.m) }

// TestScripts runs the program itself. In the scripts, BIN is where it is and
// PATH may be changed to take other programs away from it.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("BIN", filepath.SplitList(os.Getenv("PATH"))[0])
			return nil
		},
	})
}
