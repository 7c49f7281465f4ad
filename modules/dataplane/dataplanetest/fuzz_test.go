package dataplanetest

import (
	"io/fs"
	"reflect"
	"testing"
)

// A scenario that can be read is about states that are the same when they are
// written and read again.
func FuzzParseScenario(f *testing.F) {
	err := fs.WalkDir(scenarios, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := scenarios.ReadFile(name)
		f.Add(text)
		return err
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := ParseScenario(text)
		if err != nil {
			return
		}
		for _, act := range s.Acts {
			again, err := ParseState(act.State.String())
			if err != nil || !reflect.DeepEqual(again, act.State) {
				t.Errorf("%+v is written as\n%s\nand read, %v, as %+v", act.State, act.State, err, again)
			}
		}
	})
}
