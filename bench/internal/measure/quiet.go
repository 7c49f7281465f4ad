package measure

import (
	"context"
	"time"

	"github.com/prometheus/procfs"
)

// quiet waits, for a limited time, until the machine has next to nothing to do.
// What the proxy before has left is taken apart after its end, by the kernel, and
// the API server tidies up too: the next start would pay for both.
func quiet(ctx context.Context) error {
	const (
		window = time.Second
		limit  = time.Minute
		little = 0.05 // of the processors
	)
	stat, err := procfs.NewDefaultFS()
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); {
		before, err := stat.Stat()
		if err != nil {
			return err
		}
		if err := pause(ctx, window); err != nil {
			return err
		}
		after, err := stat.Stat()
		if err != nil {
			return err
		}
		if busy(before.CPUTotal, after.CPUTotal) < little {
			return nil
		}
	}
	return nil // a machine with other work is measured all the same
}

// busy is which part of the processors' time between two readings was used.
func busy(before, after procfs.CPUStat) float64 {
	idle := after.Idle + after.Iowait - before.Idle - before.Iowait
	all := idle + after.User + after.Nice + after.System + after.IRQ + after.SoftIRQ + after.Steal -
		before.User - before.Nice - before.System - before.IRQ - before.SoftIRQ - before.Steal
	if all <= 0 {
		return 0
	}
	return 1 - idle/all
}
