package userspace

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/relay"
)

// listeners are those of one plane.
type listeners struct {
	open map[poolKey]*relay.Listener
	// retired are those that rules may still lead to.
	retired map[dataplane.ServicePortName][]*relay.Listener
}

func newListeners() listeners {
	return listeners{
		open: make(map[poolKey]*relay.Listener), retired: make(map[dataplane.ServicePortName][]*relay.Listener),
	}
}

// retire takes a listener out, to be closed when nothing leads to it.
func (l *listeners) retire(k poolKey) {
	was := l.open[k]
	delete(l.open, k)
	l.retired[k.name] = append(l.retired[k.name], was)
}

// moveTo retires all listeners that are not at an address.
func (l *listeners) moveTo(a netip.Addr) {
	for k, open := range l.open {
		if open.Addr().Addr() != a {
			l.retire(k)
		}
	}
}

// closeRetired closes the retired listeners of some ServicePorts, and counts
// them.
func (l *listeners) closeRetired(names []dataplane.ServicePortName) (int, error) {
	var errs []error
	n := 0
	for _, name := range names {
		for _, retired := range l.retired[name] {
			n++
			if err := retired.Close(); err != nil {
				errs = append(errs, fmt.Errorf("close the listener of %s at %s: %w", name, retired.Addr(), err))
			}
		}
		delete(l.retired, name)
	}
	return n, errors.Join(errs...)
}

func (l *listeners) closeAll() error {
	var names []dataplane.ServicePortName
	for k := range l.open {
		l.retire(k)
	}
	for n := range l.retired {
		names = append(names, n)
	}
	_, err := l.closeRetired(names)
	return err
}
