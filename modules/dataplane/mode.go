package dataplane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Mode is one kind of dataplane, as a value. The agent lists its modes in one
// slice; nothing registers itself.
type Mode struct {
	Name string
	// Probe tells whether this machine can run the mode for a family. The
	// error says in a sentence what is missing and what to do.
	Probe func(context.Context, Family) error
	// Open returns a plane, which changes nothing before its first Sync.
	Open func(context.Context, Family) (Plane, error)
	// Cleanup removes every kernel object of the mode and family and nothing
	// else. It is idempotent and works without having run the mode; an error
	// names what is left.
	Cleanup func(context.Context, Family) error
	// Retire is Cleanup for a node on which something else works by now: it lets
	// established flows end first, and tells how many it left what they need. It
	// is repeated until there are none. nil: Cleanup cuts no flow.
	Retire func(context.Context, Retirement) (flows int, err error)
	// Lacks are the capabilities that the mode's means do not have.
	Lacks []Capability
}

// Retirement is what has become of a mode.
type Retirement struct {
	Family Family
	// Age is how long ago it was taken over. What a mode leaves to established
	// flows it takes away at an age of its own.
	Age time.Duration
	// InUse: it was kube-proxy's, and the mode of the same name has taken it over.
	// Only what its plane does not use goes.
	InUse bool
}

// Capability is a property of the contract that the means of some modes cannot
// have. Tests check that a mode lacks just what it declares.
type Capability string

// The capabilities.
const (
	// KeepSource: a flow that needs no masquerade arrives with its own source.
	KeepSource Capability = "keep-source"
	// KeepFlows: the kernel goes on without the process: established flows
	// survive its end, and new ones are served.
	KeepFlows Capability = "keep-flows"
	// AffinityByPort: affinity binds a client for each Service port and pool
	// separately.
	AffinityByPort Capability = "affinity-by-port"
	// SourcePorts: a client may use one source port for flows to one endpoint
	// through several frontends at once (kubernetes#107249).
	SourcePorts Capability = "source-ports"
	// AffinityByPool: frontends that lead to one pool share its bindings: a
	// client keeps its endpoint from one to the other.
	AffinityByPool Capability = "affinity-by-pool"
	// AffinityExpiry: a client is free once it has begun no flow for the timeout.
	// IPVS keeps a binding for as long as it remembers flows of it, which is two
	// minutes more for a TCP connection that was closed.
	AffinityExpiry Capability = "affinity-expiry"
	// RefuseWhileDraining: the node's own flows to a ClusterIP are refused at once
	// while its last endpoints drain, as all others are. IPVS, which sees them before
	// a rule could reject them, answers by ICMP, and with IPv6 from within connect(2),
	// which only takes note of it: the program is told after a second, by the next SYN.
	RefuseWhileDraining Capability = "refuse-while-draining"
	// ForwardSCTP: flows of SCTP are forwarded. A mode that lacks it refuses them,
	// and reports their ServicePorts in Report.Failed, with
	// errors.ErrUnsupported.
	ForwardSCTP Capability = "sctp"
	// StableKernelState: equal snapshots give byte-equal kernel state.
	StableKernelState Capability = "stable-kernel-state"
)

// Capabilities returns all of them, in the order in which they are shown.
func Capabilities() []Capability {
	return []Capability{KeepSource, KeepFlows, AffinityByPort, AffinityByPool, AffinityExpiry, SourcePorts, RefuseWhileDraining, ForwardSCTP, StableKernelState}
}

// Has tells whether the mode has a capability.
func (m Mode) Has(c Capability) bool { return !slices.Contains(m.Lacks, c) }

// Refusal is a mode that could not be used, and why.
type Refusal struct {
	Mode string
	Err  error
}

// Choice is the outcome of Choose.
type Choice struct {
	Mode Mode
	// Refused are the modes that would have come before it.
	Refused []Refusal
}

// FellBack tells whether another mode than the wanted one was chosen.
func (c Choice) FellBack() bool { return len(c.Refused) > 0 }

// Choose returns the first mode of an order, given by name, that this machine
// can run for all the families. An unknown name is an error at once: it is a
// mistake in the configuration, not a property of the machine.
func Choose(ctx context.Context, modes []Mode, order []string, families []Family) (Choice, error) {
	var c Choice
	candidates := make([]Mode, 0, len(order))
	for _, name := range order {
		i := slices.IndexFunc(modes, func(m Mode) bool { return m.Name == name })
		if i < 0 {
			return c, fmt.Errorf("unknown proxy mode %q: want one of %s", name, modeNames(modes))
		}
		candidates = append(candidates, modes[i])
	}
	var errs []error
	for _, m := range candidates {
		err := probe(ctx, m, families)
		if err == nil {
			c.Mode = m
			return c, nil
		}
		c.Refused = append(c.Refused, Refusal{m.Name, err})
		errs = append(errs, err)
	}
	return c, fmt.Errorf("no proxy mode can run here: %w", errors.Join(errs...))
}

func probe(ctx context.Context, m Mode, families []Family) error {
	for _, f := range families {
		if err := m.Probe(ctx, f); err != nil {
			return fmt.Errorf("%s mode for %s: %w", m.Name, f, err)
		}
	}
	return nil
}

func modeNames(modes []Mode) string {
	names := make([]string, len(modes))
	for i, m := range modes {
		names[i] = m.Name
	}
	return strings.Join(names, ", ")
}
