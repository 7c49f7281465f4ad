package agent

import (
	"runtime"
	"runtime/debug"
)

// release is the version of which this tree is, or will be.
const release = "v0.1.0-dev"

// Version returns the release, with the commit if the compiler knew it, and
// the version of Go.
func Version() string {
	v := release
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				v += "+" + s.Value
			}
		}
	}
	return v + " " + runtime.Version()
}
