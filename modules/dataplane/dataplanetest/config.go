package dataplanetest

import (
	"context"
	"time"

	"github.com/portway/portway/modules/dataplane"
)

// Config says how a mode is held to the laws.
type Config struct {
	Mode dataplane.Mode
	// Families are those that the mode's planes are opened for; nil is what the
	// environment says, and both by default.
	Families []dataplane.Family
	// Iptables names the back end that the node's other programs use, and a
	// plane must detect: "nft" or "legacy"; "" is nft.
	Iptables string
	// OpenFaulty opens a plane of the mode that calls fail before each call to
	// the kernel, and takes its error for that of the call.
	OpenFaulty func(fail func() error) Open
	// Take takes away one thing that the mode has made in the kernel for a
	// family and that is no iptables rule, set entry, address or route, as
	// somebody else might, and says what; "" if there is none. It is called
	// inside the node; choose(n) is a number below n. nil: there is no such
	// thing.
	Take func(ctx context.Context, f dataplane.Family, choose func(n int) int) (taken string, err error)
	// Wipes are commands that make an end of all of a kind that the mode has made
	// in the kernel, beside its rules, as an operator might give one.
	Wipes [][]string
	// Normalize removes from a dump of the kernel's state what may differ
	// between equal snapshots; nil removes nothing.
	Normalize func(dump string) string
	// Budget bounds the time of each property; 0 is ten seconds. A property
	// that has begun its last case ends it.
	Budget time.Duration
}

func (c Config) families() []dataplane.Family {
	if c.Families == nil {
		return familiesToTest()
	}
	return c.Families
}

func (c Config) budget() time.Duration {
	if c.Budget == 0 {
		return 10 * time.Second
	}
	return c.Budget
}

func (c Config) legacy() bool { return c.Iptables == "legacy" }

// tool is an iptables program of the back end in use, such as
// iptables-nft-save.
func (c Config) tool(f dataplane.Family, suffix string) string {
	backend := c.Iptables
	if backend == "" {
		backend = "nft"
	}
	return ofFamily(f, "iptables-", "ip6tables-") + backend + suffix
}
