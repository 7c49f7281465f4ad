package program

import (
	"maps"
	"slices"

	"github.com/portway/portway/modules/dataplane"
)

// change is a ServicePort that may have to be programmed anew.
type change struct {
	name dataplane.ServicePortName
	want *dataplane.ServicePort // nil: it must go
	// old and new are the sources; nil where there is none.
	old, new Source
	// partial is why the new source is not all that it should be.
	partial error
}

// changes are what may not be programmed as it is wanted: if nothing is taken
// on trust, all.
func (s *pass) changes(want *dataplane.Snapshot) []change {
	var all []change
	if !s.report.Full && !s.wish.Anew && s.last != nil {
		for c := range want.ChangesSince(s.last) {
			all = append(all, s.change(c.Name, c.New))
		}
		if len(s.failed) > 0 && !s.wish.Now.Before(s.retry) {
			all = append(all, s.retries(want, all)...)
		}
		return all
	}
	for sp := range want.ServicePorts() {
		all = append(all, s.change(sp.Name, sp))
	}
	for _, name := range slices.SortedFunc(maps.Keys(s.model.sources), dataplane.ServicePortName.Compare) {
		if _, ok := want.ServicePort(name); !ok {
			all = append(all, s.change(name, nil))
		}
	}
	return all
}

func (s *pass) change(n dataplane.ServicePortName, want *dataplane.ServicePort) change {
	return change{name: n, want: want, old: s.model.sources[n]}
}

// retries are the changes that try again what failed.
func (s *pass) retries(want *dataplane.Snapshot, listed []change) []change {
	again := maps.Clone(s.failed)
	for _, c := range listed {
		delete(again, c.name)
	}
	var all []change
	for _, n := range slices.SortedFunc(maps.Keys(again), dataplane.ServicePortName.Compare) {
		if sp, ok := want.ServicePort(n); ok {
			all = append(all, s.change(n, sp))
		}
	}
	return all
}

// prepared asks for the sources of what is wanted, and keeps the changes that
// are some.
func (s *pass) prepared(changes []change) []change {
	var real []change
	for _, c := range changes {
		if c.want != nil {
			c.new, c.partial = s.wish.Source(c.want)
		}
		if c.new != c.old {
			real = append(real, c)
		} else {
			s.judge(c)
		}
	}
	return real
}

// judge records whether a ServicePort is all that it should be.
func (s *pass) judge(c change) {
	delete(s.failed, c.name)
	if c.partial != nil {
		s.failed[c.name] = c.partial
	}
}

// removed are the frontends that were in the kernel and are in the snapshot no
// more.
func (s *pass) removed(want *dataplane.Snapshot, changes []change) []dataplane.FrontendKey {
	var gone []dataplane.FrontendKey
	note := func(k dataplane.FrontendKey) {
		if _, ok := want.Lookup(k); !ok {
			gone = append(gone, k)
		}
	}
	for _, k := range s.owed {
		note(k)
	}
	if s.last == nil && s.reading != nil {
		for _, k := range s.wish.Claimed(s.reading.sets) {
			note(k)
		}
	}
	for _, c := range changes {
		if c.old == nil || c.old.ServicePort() == c.want {
			continue
		}
		for _, f := range c.old.ServicePort().Frontends {
			if f.Family == s.Layout.Family {
				note(f.Key(c.name.Protocol))
			}
		}
	}
	slices.SortFunc(gone, dataplane.FrontendKey.Compare)
	return slices.Compact(gone)
}
