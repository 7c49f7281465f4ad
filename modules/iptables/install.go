package iptables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink/nl"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
)

// install brings changes into the kernel. A ServicePort that the kernel
// refuses is found, by what the error names or by halving, and left out; what
// it replaces stays as it was, if that still works (kubernetes#36652).
func (s *pass) install(ctx context.Context, changes []change) error {
	s.stage(changes)
	err := s.try(ctx)
	for culprit, ok := s.culprit(err); ok; culprit, ok = s.culprit(err) {
		s.exclude(culprit, changes, err)
		err = s.try(ctx)
	}
	if err == nil || !refused(ctx, err) || len(changes) == 0 {
		return err
	}
	s.unstage(changes)
	if err := s.try(ctx); err != nil {
		return err // it is not the fault of a ServicePort
	}
	if len(changes) == 1 {
		s.failed[changes[0].name] = err
		return nil
	}
	half := len(changes) / 2
	if err := s.install(ctx, changes[:half]); err != nil {
		return err
	}
	return s.install(ctx, changes[half:])
}

// maxRefusals bounds the search for culprits in one Sync. More of them have a
// common cause, which is no ServicePort.
const maxRefusals = 200

// errTooMany ends the search.
var errTooMany = errors.New("too many writes are refused")

// try commits, and counts what is refused.
func (s *pass) try(ctx context.Context) error {
	err := s.commit(ctx)
	if err != nil && refused(ctx, err) {
		if s.refusals++; s.refusals > maxRefusals {
			return fmt.Errorf("%w, the last: %w", errTooMany, err)
		}
	}
	return err
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

// unstage goes back to the versions that work.
func (s *pass) unstage(changes []change) {
	for _, c := range changes {
		s.model.remove(c.name)
	}
	for _, c := range changes {
		s.restoreOld(c)
	}
}

// restoreOld puts the older version back, unless what it had belongs to another
// ServicePort by now: then it stays out.
func (s *pass) restoreOld(c change) {
	if c.old != nil {
		_ = s.model.put(c.old)
	}
}

// exclude takes out a ServicePort that the kernel refused.
func (s *pass) exclude(n dataplane.ServicePortName, changes []change, err error) {
	refused := s.model.ports[n]
	s.model.remove(n)
	for _, c := range changes {
		if c.name == n && c.old != refused {
			s.restoreOld(c)
		}
	}
	s.failed[n] = err
}

// retries are the changes that try again what failed.
func (s *pass) retries(want *dataplane.Snapshot, listed []change) []change {
	again := make(map[dataplane.ServicePortName]bool)
	for n := range s.failed {
		again[n] = true
	}
	for _, c := range listed {
		delete(again, c.name)
	}
	var all []change
	for n := range again {
		if sp, ok := want.ServicePort(n); ok {
			all = append(all, change{n, s.model.ports[n], sp})
		}
	}
	return all
}

// refused tells whether it was the content of a write that failed, and not the
// writing.
func refused(ctx context.Context, err error) bool {
	if ctx.Err() != nil || errors.Is(err, netfilter.ErrLockTimeout) || errors.Is(err, errTooMany) {
		return false
	}
	var restore *netfilter.RestoreError
	var set nl.IPSetError // such as too many sets
	return errors.As(err, &restore) || errors.As(err, &set) || errors.Is(err, netfilter.ErrSetFull) ||
		errors.Is(err, netfilter.ErrSetExists) || errors.Is(err, netfilter.ErrSetInUse)
}

// culprit is the ServicePort in whose chain or rule a write failed.
func (s *pass) culprit(err error) (dataplane.ServicePortName, bool) {
	var restore *netfilter.RestoreError
	if !errors.As(err, &restore) || errors.Is(err, netfilter.ErrLockTimeout) || errors.Is(err, errTooMany) {
		return dataplane.ServicePortName{}, false
	}
	id := chainID{restore.Table, restore.Chain}
	if n, ok := s.model.owners[id]; ok {
		return n, true
	}
	for _, r := range s.model.shared[id] {
		if strings.HasSuffix(restore.Text, " "+r.rule.String()) {
			return r.owner, true
		}
	}
	return dataplane.ServicePortName{}, false
}

// commit writes what is dirty.
func (s *pass) commit(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			s.model.dirty.doubt()
		}
	}()
	plan := makePlan(s.model, s.have, s.reading, s.digest)
	before, after := around(s.family, plan.sets)
	if err := s.kernel.ChangeSets(ctx, before); err != nil {
		return err
	}
	if err := s.watchWrite(ctx, func() (uint32, error) { return s.restore(ctx, plan) }); err != nil {
		return err
	}
	if err := s.kernel.ChangeSets(ctx, after); err != nil {
		return err
	}
	s.report.Writes += plan.writes()
	s.model.dirty, s.reading = newDirt(), nil
	return nil
}

// restore writes the tables and counts the writes.
func (s *pass) restore(ctx context.Context, p *plan) (writes uint32, err error) {
	for _, tx := range p.tables {
		for _, part := range tx.Split(s.chunk) {
			if part.IsEmpty() {
				continue
			}
			if err := s.kernel.Restore(ctx, part); err != nil {
				return writes, err
			}
			writes++
			s.confirm(part, p.sums)
		}
	}
	return writes, nil
}

// confirm takes over what the kernel has accepted.
func (s *pass) confirm(tx netfilter.Transaction, sums digests) {
	for _, c := range tx.Chains {
		id := chainID{tx.Table, c.Name}
		s.counted(tx.Table, sums[id].rules-s.have[id].rules, len(c.Rules))
		s.have[id] = sums[id]
	}
	for _, name := range tx.Delete {
		id := chainID{tx.Table, name}
		s.counted(tx.Table, -s.have[id].rules, 0)
		delete(s.have, id)
	}
	s.counted(tx.Table, 0, len(tx.Insert))
	if s.reading == nil {
		return
	}
	for _, placed := range [][]netfilter.PlacedRule{tx.Remove, tx.Insert} {
		for _, r := range placed {
			id := chainID{tx.Table, r.Chain}
			foreign := slices.DeleteFunc(s.reading.hooks[id], ownIn(tx.Table))
			s.reading.hooks[id] = append(slices.Clone(wantJumps(id)), foreign...)
		}
	}
}
