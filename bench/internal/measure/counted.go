package measure

import (
	"errors"

	"github.com/prometheus/procfs"

	"github.com/portway/portway/bench/internal/network"
)

// counter counts what the kernel is asked for. It is of a kernel that has nothing
// else to do.
type counter struct {
	netlink *network.Netlink
	stat    procfs.FS
}

// counts are how much of it there was.
type counts struct{ processes, datagrams uint64 }

func (r *run) openCounter() (err error) {
	if !r.Alone {
		return nil
	}
	c := new(counter)
	if c.stat, err = procfs.NewDefaultFS(); err != nil {
		return err
	}
	if c.netlink, err = network.CountNetlink(r.net.Node); err != nil {
		return err
	}
	r.counter = c
	return nil
}

func (c *counter) read() (n counts, err error) {
	stat, err1 := c.stat.Stat()
	n.processes = stat.ProcessCreated
	var err2 error
	n.datagrams, err2 = c.netlink.Count()
	return n, errors.Join(err1, err2)
}

// counting puts what f costs, for each of a number of changes, into the figures.
func (r *run) counting(name string, changes int, f func() error) error {
	if r.counter == nil {
		return f()
	}
	before, err := r.counter.read()
	if err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	after, err := r.counter.read()
	if err != nil {
		return err
	}
	r.figures[name+".processes"] = float64(after.processes-before.processes) / float64(changes)
	r.figures[name+".netlink"] = float64(after.datagrams-before.datagrams) / float64(changes)
	return nil
}
