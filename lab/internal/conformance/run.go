package conformance

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
)

// Run is what Ginkgo reported.
type Run struct {
	Specs map[string]Result // those of the group, by name, without it
	Took  time.Duration
	// Broken is what failed outside of specs: nothing ran then.
	Broken string
}

// Result is what became of a spec.
type Result struct {
	State   string // passed, skipped, failed, panicked, timedout, …
	Took    time.Duration
	Message string // why it did not pass
}

// The states that are told apart.
const (
	passed  = "passed"
	skipped = "skipped"
)

// ginkgoReport is a part of what `ginkgo --json-report` writes, for each suite.
type ginkgoReport struct {
	RunTime     time.Duration
	SpecReports []struct {
		ContainerHierarchyTexts []string
		LeafNodeType            string
		LeafNodeText            string
		State                   string
		RunTime                 time.Duration
		Failure                 struct{ Message string }
	}
}

// Read reads Ginkgo's report, which has all specs of the suite, run or not.
func Read(path string) (Run, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return Run{}, fmt.Errorf("report of the specs: %w", err)
	}
	var suites []ginkgoReport
	if err := json.Unmarshal(raw, &suites); err != nil {
		return Run{}, fmt.Errorf("report of the specs in %s: %w", path, err)
	}
	run := Run{Specs: map[string]Result{}}
	for _, suite := range suites {
		run.Took += suite.RunTime
		for _, s := range suite.SpecReports {
			r := Result{State: s.State, Took: s.RunTime, Message: s.Failure.Message}
			if s.LeafNodeType != "It" {
				if s.State != passed {
					run.Broken += s.LeafNodeType + ": " + r.Message + "\n"
				}
				continue
			}
			full := strings.Join(append(s.ContainerHierarchyTexts, s.LeafNodeText), " ")
			if name, ok := strings.CutPrefix(full, group); ok {
				run.Specs[name] = r
			}
		}
	}
	return run, nil
}
