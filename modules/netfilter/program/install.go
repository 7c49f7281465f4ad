package program

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
	if err := s.undo(ctx, changes); err != nil {
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

// MaxRefusals bounds the search for culprits in one Sync. More of them have a
// common cause, which is no ServicePort.
const MaxRefusals = 200

// try commits, and counts what is refused.
func (s *pass) try(ctx context.Context) error {
	err := s.commit(ctx)
	if err != nil && refused(ctx, err) {
		if s.refusals++; s.refusals > MaxRefusals {
			return fmt.Errorf("%w, the last: %w", ErrTooManyRefused, err)
		}
	}
	return err
}

// stage makes changes in the model. What one ServicePort gives up another one
// may take, so all let go first.
func (s *pass) stage(changes []change) {
	for _, c := range changes {
		s.pending[c.name] = false
		s.remove(c.name)
		s.judge(c)
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

func (s *pass) remove(n dataplane.ServicePortName) {
	s.touched[n] = true
	s.model.remove(n)
}

// undo makes the kernel equal to the versions that work. Where several changes
// are undone it is for a moment, until they are staged again: Settle does not
// hear of it, because what a source stands for, such as a listener, must not be
// let go meanwhile.
func (s *pass) undo(ctx context.Context, changes []change) error {
	s.unstage(changes)
	for _, c := range changes {
		s.pending[c.name] = len(changes) > 1
	}
	return s.try(ctx)
}

// unstage goes back to the versions that work.
func (s *pass) unstage(changes []change) {
	for _, c := range changes {
		s.remove(c.name)
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
	refused := s.model.sources[n]
	s.remove(n)
	for _, c := range changes {
		if c.name == n && c.old != refused {
			s.restoreOld(c)
		}
	}
	s.failed[n] = err
}

// refused tells whether it was the content of a write that failed, and not the
// writing.
func refused(ctx context.Context, err error) bool {
	if ctx.Err() != nil || errors.Is(err, netfilter.ErrLockTimeout) || errors.Is(err, ErrTooManyRefused) {
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
	if !errors.As(err, &restore) || errors.Is(err, netfilter.ErrLockTimeout) || errors.Is(err, ErrTooManyRefused) {
		return dataplane.ServicePortName{}, false
	}
	id := ChainID{restore.Table, restore.Chain}
	if n, ok := s.model.owners[id]; ok {
		return n, true
	}
	for _, shared := range s.model.shared[id] {
		if slices.ContainsFunc(shared.Rules, func(r netfilter.Rule) bool { return strings.HasSuffix(restore.Text, " "+r.String()) }) {
			return shared.Owner, true
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
	before, after := plan.sets.Around(s.Layout.givesMeaning(plan.sets))
	if err := s.Kernel.ChangeSets(ctx, before); err != nil {
		return err
	}
	if err := s.watchWrite(ctx, func() (uint32, error) { return s.restore(ctx, plan) }); err != nil {
		return err
	}
	if err := s.settle(); err != nil {
		return err
	}
	if err := s.Kernel.ChangeSets(ctx, after); err != nil {
		return err
	}
	s.report.Writes += plan.writes()
	s.model.dirty, s.reading = newDirt(), nil
	return nil
}

// settle tells whoever wants to know that the rules are written.
func (s *pass) settle() error {
	var names []dataplane.ServicePortName
	for n := range s.touched {
		if !s.pending[n] {
			names = append(names, n)
		}
	}
	if s.wish.Settle == nil || len(names) == 0 {
		return nil
	}
	slices.SortFunc(names, dataplane.ServicePortName.Compare)
	if err := s.wish.Settle(names); err != nil {
		return err
	}
	for _, n := range names {
		delete(s.touched, n)
	}
	return nil
}

// restore writes the tables and counts the writes.
func (s *pass) restore(ctx context.Context, p *plan) (writes uint32, err error) {
	for _, tx := range p.tables {
		for _, part := range tx.Split(s.Chunk) {
			if part.IsEmpty() {
				continue
			}
			if err := s.Kernel.Restore(ctx, part); err != nil {
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
		id := ChainID{tx.Table, c.Name}
		s.counted(tx.Table, sums[id].rules-s.have[id].rules, len(c.Rules))
		s.have[id] = sums[id]
	}
	for _, name := range tx.Delete {
		id := ChainID{tx.Table, name}
		s.counted(tx.Table, -s.have[id].rules, 0)
		delete(s.have, id)
	}
	s.counted(tx.Table, 0, len(tx.Insert))
	if s.reading == nil {
		return
	}
	for _, placed := range [][]netfilter.PlacedRule{tx.Remove, tx.Insert} {
		for _, r := range placed {
			id := ChainID{tx.Table, r.Chain}
			foreign := slices.DeleteFunc(s.reading.hooks[id], s.Layout.owns(tx.Table))
			s.reading.hooks[id] = append(slices.Clone(s.Layout.jumps(id)), foreign...)
		}
	}
}

// counted keeps count of the rules in our chains.
func (s *pass) counted(t netfilter.Table, more, written int) {
	s.held[t] += more
	s.written[t] += written
}
