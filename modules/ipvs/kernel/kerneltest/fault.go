package kerneltest

import (
	"errors"
	"math/rand/v2"
)

// ErrInjected is what a call that was made to fail fails with.
var ErrInjected = errors.New("made to fail")

// Call is a call that may be made to fail.
type Call struct {
	// Number of the call, from 1, over all methods.
	Number int
	// Method is its name, such as "Apply".
	Method string
}

// Fault is what happens to a call.
type Fault uint8

// Refused does nothing and fails. Partly does the first half of the changes and
// fails, as when the socket breaks. Lost does all of it and fails nevertheless,
// like a message whose answer is lost.
const (
	None Fault = iota
	Refused
	Partly
	Lost
)

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

// faults are what tests want to go wrong.
type faults struct {
	decide func(Call) Fault
	calls  int
}

func (f *faults) inject(decide func(Call) Fault) { f.decide, f.calls = decide, 0 }

// failure is how a call fails; its err is nil if it does not.
type failure struct {
	err             error
	applied, partly bool
}

// next counts a call and says how it fails.
func (f *faults) next(method string) failure {
	f.calls++
	if f.decide == nil {
		return failure{}
	}
	switch f.decide(Call{Number: f.calls, Method: method}) {
	case Refused:
		return failure{err: ErrInjected}
	case Partly:
		return failure{err: ErrInjected, applied: true, partly: true}
	case Lost:
		return failure{err: ErrInjected, applied: true}
	}
	return failure{}
}
