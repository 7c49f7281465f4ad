package dataplane

import (
	"context"
	"time"
)

// A Plane makes the Services of one family work by the means of one mode. It
// owns no goroutine, lock, clock or policy; a Reconciler calls it from one
// goroutine. (modules/relay, whose means are sockets, owns those.)
type Plane interface {
	// Sync makes the kernel equal to the wanted snapshot. It compares with the
	// snapshot that it applied last; the first time, after an error, and when
	// told to distrust, it reads the kernel. It is idempotent: repeated at
	// once it writes nothing. Nothing is taken for done before the kernel has
	// confirmed it, so an error loses nothing: the next Sync makes up for it.
	Sync(ctx context.Context, r SyncRequest) (Report, error)

	// Audit returns how the kernel differs from the wanted snapshot, sorted by
	// object, and changes nothing.
	Audit(ctx context.Context, want *Snapshot) ([]Difference, error)

	// Explain follows a new flow without memory through the actual state of
	// the kernel.
	Explain(ctx context.Context, f Flow) (Explanation, error)

	// Close lets go of handles. The node keeps forwarding where the means of
	// the mode allow.
	Close() error
}

// SyncRequest is what a Plane is asked for.
type SyncRequest struct {
	Now  time.Time
	Want *Snapshot
	// Distrust: something may have been changed by others; compare with the
	// kernel itself, not with memory.
	Distrust bool
}

// Report tells what a Sync did.
type Report struct {
	// Writes counts the changes written to the kernel, in units of the mode
	// (rules, set entries, messages); 0 if nothing was to do.
	Writes int
	// Full: the kernel was read and compared, not only the last snapshot.
	Full bool
	// Failed are the ServicePorts that could not be programmed. They were left
	// out; all others work.
	Failed []Failure
	// Removed are the frontends that no longer exist, also those of an earlier
	// run that the first Sync found in the kernel. Their flows may be stale.
	Removed []FrontendKey
	// Repaired are the differences that a Sync with Distrust found and
	// mended, other than those that the snapshot explains.
	Repaired []Difference
	// Warnings are what an operator must know although nothing failed, such as
	// rules of ours in the iptables back end that is not in use, which win.
	Warnings []string
	// Objects counts what the plane holds in the kernel, by the mode's own
	// kinds: for rules of iptables, by table. Nil if there is nothing to count.
	Objects map[string]ObjectCount
	// Packets counts packets since their rule or socket was made, by what they
	// were, such as [InvalidDropped]. A plane tells them when it compares with
	// the kernel, and may leave out what it cannot read.
	Packets map[string]uint64
	// Again is when the plane wants the next Sync at the latest, because
	// something drains; zero if it has no such wish.
	Again time.Time
}

// Kinds of packets that a Report counts.
const (
	// InvalidDropped are packets that conntrack called INVALID.
	InvalidDropped = "invalid-dropped"
	// LoopbackAccepted are the first packets of flows to NodePorts on loopback.
	LoopbackAccepted = "loopback-accepted"
)

// ObjectCount counts kernel objects of one kind.
type ObjectCount struct {
	Held    int // now in the kernel
	Written int // by this Sync
}

// Failure is a ServicePort that could not be programmed.
type Failure struct {
	Name ServicePortName
	Err  error
}

// Difference is one way in which the kernel is not as it should be.
type Difference struct {
	// Object is the kernel object in the words of its tool, such as
	// "nat chain KUBE-SVC-XYZ".
	Object string
	// ServicePort is whom it serves; zero if it serves all.
	ServicePort ServicePortName
	// Want and Have are the two states; empty where there should be nothing,
	// or is nothing.
	Want, Have string
}

// String returns the difference in a line.
func (d Difference) String() string {
	s := d.Object
	if d.ServicePort != (ServicePortName{}) {
		s += " (" + d.ServicePort.String() + ")"
	}
	switch {
	case d.Have == "":
		return s + " is missing: " + d.Want
	case d.Want == "":
		return s + " is superfluous: " + d.Have
	}
	return s + " is " + d.Have + ", want " + d.Want
}
