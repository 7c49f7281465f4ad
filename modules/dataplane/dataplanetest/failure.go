package dataplanetest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/rogpeppe/go-internal/txtar"
)

// failuresVariable names a folder for what laws fail with.
const failuresVariable = "PORTWAY_TEST_FAILURES"

// saveFailure writes a state that a test has failed with as a scenario to be
// given probes, if there is a folder for it. While a case is being made smaller
// its test fails many times; the last and smallest one stays.
func saveFailure(test, story string, state State) error {
	folder := os.Getenv(failuresVariable)
	if folder == "" {
		return nil
	}
	text := txtar.Format(&txtar.Archive{
		Comment: []byte(story + "\n"),
		Files:   []txtar.File{{Name: "state", Data: []byte(state.String())}},
	})
	path := filepath.Join(folder, strings.ReplaceAll(test, "/", "_")+".txtar")
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return fmt.Errorf("save the failure: %w", err)
	}
	return nil
}
