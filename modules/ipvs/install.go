package ipvs

import (
	"context"
	"errors"
	"fmt"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/ipvs/kernel"
	"github.com/portway/portway/modules/netfilter"
)

// install brings changes into the kernel, in the order of order.go.
func (s *pass) install(ctx context.Context, changes []change) error {
	s.stage(changes)
	if err := s.adopt(ctx); err != nil {
		return err
	}
	if s.isCold() {
		if err := s.writeRules(ctx); err != nil {
			return err
		}
	}
	if err := s.grow(ctx, changes); err != nil {
		return err
	}
	if err := s.writeRules(ctx); err != nil {
		return err
	}
	if err := s.turn(ctx); err != nil {
		return err
	}
	if err := s.shrink(ctx); err != nil {
		return err
	}
	_, _, after := s.ranks.cut(s.model.dirtySets())
	if err := s.changeSets(ctx, after); err != nil {
		return err
	}
	s.noteDrains()
	s.model.dirty = newDirt()
	return nil
}

// stage makes changes in the model. What one ServicePort gives up another one
// may take, so all let go first.
func (s *pass) stage(changes []change) {
	for _, c := range changes {
		s.model.remove(c.name)
		delete(s.failed, c.name)
	}
	for _, c := range changes {
		if c.new == nil {
			continue
		}
		if err := s.model.put(c.new); err != nil {
			s.failed[c.name] = err
		}
	}
}

// adopt compares the model with what was read, and makes the sets.
func (s *pass) adopt(ctx context.Context) error {
	for k, h := range s.unclaimed {
		if _, wanted := s.model.servers[k]; wanted {
			s.state[k] = h
			delete(s.unclaimed, k)
		}
	}
	if s.reading == nil {
		return nil
	}
	d := &s.model.dirty
	for k := range s.reading.servers {
		d.servers[k] = true
	}
	for a := range s.reading.locals {
		d.locals[a] = true
	}
	d.rules = true
	d.entries = make(map[netfilter.SetChange]bool)
	plan := netfilter.PlanSets(s.model.wantSets(), s.reading.sets)
	for _, c := range plan.Add {
		d.entries[c] = false
	}
	for _, c := range plan.Remove {
		d.entries[c] = true
	}
	var missing netfilter.SetPlan
	for _, set := range plan.Create {
		for _, e := range set.Entries {
			d.entries[netfilter.SetChange{Set: set.Name, Type: set.Type, Entry: e}] = false
		}
		set.Entries = nil
		missing.Create = append(missing.Create, set)
	}
	missing.Replace = plan.Replace
	return s.changeSets(ctx, missing)
}

// changeSets changes sets, and keeps in mind that they are changed.
func (s *pass) changeSets(ctx context.Context, p netfilter.SetPlan) error {
	if p.IsEmpty() {
		return nil
	}
	if err := s.netfilter.ChangeSets(ctx, p); err != nil {
		return err
	}
	for _, c := range p.Add {
		s.model.dirty.entries[c] = true
	}
	for _, c := range p.Remove {
		s.model.dirty.entries[c] = false
	}
	s.report.Writes += p.Writes()
	s.written[kindEntries] += p.Writes()
	return nil
}

// grow adds what refuses flows, and what flows are sent to later. A ServicePort
// of which the kernel refuses something is left out; its older version stays,
// if that still works (kubernetes#36652).
func (s *pass) grow(ctx context.Context, changes []change) error {
	for {
		before, _, _ := s.ranks.cut(s.model.dirtySets())
		if err := s.changeSets(ctx, before); err != nil {
			return err
		}
		put, _, _ := planLocals(s.model, s.model.dirty.aliases(), s.locals)
		if err := s.changeLocals(ctx, put); err != nil {
			return err
		}
		plan := planServers(s.model, s.inOrderOfTrash(s.model.dirty.keys()), s.state)
		refused, err := s.changeServers(ctx, plan.grow)
		if err != nil {
			return err
		}
		if len(refused) == 0 {
			return nil
		}
		if err := s.isolate(refused, changes); err != nil {
			return err
		}
	}
}

// turn sends flows to virtual servers, or elsewhere.
func (s *pass) turn(ctx context.Context) error {
	put, unbind, remove := planLocals(s.model, s.model.dirty.clusterIPs(), s.locals)
	if err := s.changeLocals(ctx, remove); err != nil {
		return err
	}
	_, between, _ := s.ranks.cut(s.model.dirtySets())
	if err := s.changeSets(ctx, between); err != nil {
		return err
	}
	if err := s.changeLocals(ctx, put); err != nil {
		return err
	}
	return s.changeLocals(ctx, unbind)
}

// shrink takes out virtual servers and aliases to which nothing is sent any
// more.
func (s *pass) shrink(ctx context.Context) error {
	plan := planServers(s.model, s.model.dirty.keys(), s.state)
	refused, err := s.changeServers(ctx, plan.shrink)
	if err != nil {
		return err
	}
	for i := range refused {
		s.refused = true
		s.warn("%v", &refused[i])
	}
	_, _, remove := planLocals(s.model, s.model.dirty.aliases(), s.locals)
	return s.changeLocals(ctx, remove)
}

// changeServers changes virtual servers and returns what the kernel refused,
// but for what was gone already.
func (s *pass) changeServers(ctx context.Context, ops []kernel.Op) ([]kernel.Refusal, error) {
	if len(ops) == 0 {
		return nil, nil
	}
	all, err := s.servers.Apply(ctx, ops)
	if err != nil {
		return nil, err
	}
	var refused []kernel.Refusal
	not := make(map[kernel.Op]bool, len(all))
	for _, r := range all {
		if isGone(r) {
			s.refused = true // somebody else took it
			continue
		}
		not[r.Op] = true
		refused = append(refused, r)
	}
	for _, op := range ops {
		if not[op] {
			continue
		}
		apply(s.state, op)
		s.report.Writes++
		if op.Verb.OfReal() {
			s.written[kindReals]++
		} else {
			s.written[kindServers]++
		}
	}
	return refused, nil
}

func isGone(r kernel.Refusal) bool {
	return r.Op.Verb == kernel.DeleteServer && errors.Is(r.Err, kernel.ErrNoServer) ||
		r.Op.Verb == kernel.DeleteReal && (errors.Is(r.Err, kernel.ErrNoServer) || errors.Is(r.Err, kernel.ErrNoReal))
}

// isolate leaves out the ServicePorts whose virtual servers were refused. A
// scheduler that the kernel does not have is no reason: the default serves.
func (s *pass) isolate(refused []kernel.Refusal, changes []change) error {
	wrong := make(map[dataplane.ServicePortName]error)
	for i := range refused {
		r := &refused[i]
		owner := s.model.owner(r.Op.Key)
		name := r.Op.Server.Scheduler
		switch {
		case errors.Is(r.Err, kernel.ErrScheduler) && name == s.options.scheduler():
			return fmt.Errorf("the scheduler of the mode: %w: choose another one, or load its module ip_vs_%s", r, name)
		case errors.Is(r.Err, kernel.ErrScheduler):
			s.unknownScheduler(name, owner)
			wrong[owner] = nil // its real servers were refused, too
		case wrong[owner] == nil:
			if _, seen := wrong[owner]; !seen {
				wrong[owner] = r
			}
		}
	}
	for n, err := range wrong {
		if err != nil {
			s.refused = true
			s.exclude(n, changes, err)
		}
	}
	return nil
}

func (s *pass) unknownScheduler(name string, owner dataplane.ServicePortName) {
	if s.unknown[name] {
		return
	}
	s.warn("service port %s wishes for the scheduler %q, which this kernel does not have: %s serves; load the module ip_vs_%s to have it",
		owner, name, s.options.scheduler(), name)
	for _, f := range s.model.forgetScheduler(name) {
		s.failed[f.Name] = f.Err
	}
}

// exclude takes out a ServicePort that the kernel refused, and puts its older
// version back unless that is refused, too, or what it had belongs to another
// one by now.
func (s *pass) exclude(n dataplane.ServicePortName, changes []change, err error) {
	refused := s.model.ports[n]
	s.model.remove(n)
	for _, c := range changes {
		if c.name == n && c.old != nil && c.old != refused {
			_ = s.model.put(c.old)
		}
	}
	s.failed[n] = err
}

// changeLocals makes addresses local, or no longer local. One that another
// device holds needs no route of ours: a snapshot that knows of it is on its way.
func (s *pass) changeLocals(ctx context.Context, ops []kernel.LocalOp) error {
	if len(ops) == 0 {
		return nil
	}
	refused, err := s.device.Apply(ctx, ops)
	if err != nil {
		return fmt.Errorf("change the addresses of %s: %w", kernel.DeviceName, err)
	}
	not := make(map[kernel.LocalOp]bool, len(refused))
	for i := range refused {
		not[refused[i].Op] = true
		s.refused = true
		s.warn("%v", &refused[i])
	}
	for _, op := range ops {
		if not[op] {
			continue
		}
		a := op.Local.Prefix.Addr()
		if op.Delete {
			if s.locals[a] == op.Local { // and not a route instead of what was bound
				delete(s.locals, a)
			}
		} else {
			s.locals[a] = op.Local
		}
		s.report.Writes++
		s.written[kindAddresses]++
	}
	return nil
}
