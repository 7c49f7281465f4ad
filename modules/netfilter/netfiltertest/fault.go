package netfiltertest

import (
	"errors"
	"math/rand/v2"

	"github.com/portway/portway/modules/netfilter"
)

// ErrInjected is what a call that was made to fail fails with.
var ErrInjected = errors.New("made to fail")

// Call is a call that may be made to fail.
type Call struct {
	// Number of the call, from 1, over all methods.
	Number int
	// Method is Save, Restore, Sets or ChangeSets.
	Method string
}

// Fault is what happens to a call.
type Fault uint8

// Refused does nothing and fails. Busy does too, because the xtables lock is
// taken. Lost does what was asked for and fails nevertheless, like a program
// that is killed after its commit.
const (
	None Fault = iota
	Refused
	Busy
	Lost
)

// Inject asks decide about every call from now on; nil ends all faults.
func (k *Kernel) Inject(decide func(Call) Fault) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fault = decide
	k.calls = 0
}

// FailCall makes one call fail.
func FailCall(number int, f Fault) func(Call) Fault {
	return func(c Call) Fault {
		if c.Number == number {
			return f
		}
		return None
	}
}

// FailSome makes a share of the calls fail, in one of the ways at random.
func FailSome(r *rand.Rand, share float64, ways ...Fault) func(Call) Fault {
	return func(Call) Fault {
		if r.Float64() >= share {
			return None
		}
		return ways[r.IntN(len(ways))]
	}
}

// failure is how a call fails.
type failure struct {
	err     error
	applied bool
}

// failure counts a call and says how it fails; its err is nil if it does not.
func (k *Kernel) failure(method string) failure {
	k.calls++
	if k.fault == nil {
		return failure{}
	}
	switch k.fault(Call{Number: k.calls, Method: method}) {
	case Refused:
		return failure{err: ErrInjected}
	case Busy:
		if method == "Restore" {
			return failure{err: netfilter.ErrLockTimeout}
		}
		return failure{err: ErrInjected}
	case Lost:
		return failure{err: ErrInjected, applied: true}
	}
	return failure{}
}
