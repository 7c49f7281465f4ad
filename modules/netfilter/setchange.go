package netfilter

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink/nl"
)

// entriesPerMessage keeps a message with the largest entries, hash:ip,port,ip
// of IPv6 with mark and timeout, under the 64 kB that an attribute can hold.
const entriesPerMessage = 400

// swapName is the set that Replace fills first when the old one is in use.
const swapName = "PORTWAY-REPLACE"

// carryOut makes the changes of a plan in its order.
func (c *setConn) carryOut(ctx context.Context, plan SetPlan) error {
	for i := range plan.Create {
		if err := c.make(ctx, &plan.Create[i]); err != nil {
			return err
		}
	}
	for i := range plan.Replace {
		if err := c.replace(ctx, &plan.Replace[i]); err != nil {
			return err
		}
	}
	if err := c.changes(ctx, nl.IPSET_CMD_ADD, plan.Add); err != nil {
		return err
	}
	if err := c.changes(ctx, nl.IPSET_CMD_DEL, plan.Remove); err != nil {
		return err
	}
	for _, name := range plan.Destroy {
		if err := context.Cause(ctx); err != nil {
			return fmt.Errorf("ipset %s: %w", name, err)
		}
		if err := c.destroy(name); err != nil {
			return err
		}
	}
	return nil
}

func (c *setConn) make(ctx context.Context, s *Set) error {
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("ipset %s: %w", s.Name, err)
	}
	c.begin().create(s)
	if err := c.send(nl.IPSET_CMD_CREATE, nil); err != nil {
		return fmt.Errorf("making the ipset %s: %w", s.Name, err)
	}
	return c.entries(ctx, nl.IPSET_CMD_ADD, s.Name, s.Type, s.Entries)
}

// destroy removes a set; that it is gone already is as good.
func (c *setConn) destroy(name string) error {
	c.begin().text(nl.IPSET_ATTR_SETNAME, name)
	err := c.send(nl.IPSET_CMD_DESTROY, nil)
	if err != nil && !errors.Is(err, ErrSetMissing) {
		return fmt.Errorf("destroying the ipset %s: %w", name, err)
	}
	return nil
}

// replace puts a set in the place of one with another header. Rules refer to
// the old one perhaps: then the new one is filled under another name and
// swapped in, which the kernel does for sets of one type and family only.
func (c *setConn) replace(ctx context.Context, s *Set) error {
	if err := c.destroy(s.Name); err == nil {
		return c.make(ctx, s)
	}
	next := *s
	next.Name = swapName
	if err := c.destroy(swapName); err != nil { // left by one who was killed
		return err
	}
	if err := c.make(ctx, &next); err != nil {
		return err
	}
	w := c.begin()
	w.text(nl.IPSET_ATTR_SETNAME, swapName)
	w.text(nl.IPSET_ATTR_SETNAME2, s.Name)
	swapErr := c.send(nl.IPSET_CMD_SWAP, nil)
	if err := c.destroy(swapName); err != nil {
		return err
	}
	if swapErr != nil {
		return fmt.Errorf("replacing the ipset %s, which a rule uses: %w", s.Name, swapErr)
	}
	return nil
}

// changes sends the changes in runs of one set.
func (c *setConn) changes(ctx context.Context, command int, changes []SetChange) error {
	for len(changes) > 0 {
		first := changes[0]
		n := 1
		for n < len(changes) && changes[n].Set == first.Set {
			n++
		}
		entries := make([]SetEntry, n)
		for i := range entries {
			entries[i] = changes[i].Entry
		}
		if err := c.entries(ctx, command, first.Set, first.Type, entries); err != nil {
			return err
		}
		changes = changes[n:]
	}
	return nil
}

// entries adds or removes many entries with few messages.
func (c *setConn) entries(ctx context.Context, command int, set string, t SetType, entries []SetEntry) error {
	for part := range slices.Chunk(entries, entriesPerMessage) {
		if err := context.Cause(ctx); err != nil {
			return fmt.Errorf("ipset %s: %w", set, err)
		}
		w := c.begin()
		w.text(nl.IPSET_ATTR_SETNAME, set)
		w.uint32(nl.IPSET_ATTR_LINENO, 1)
		list := w.open(nl.IPSET_ATTR_ADT | nl.NLA_F_NESTED)
		for i := range part {
			w.entry(t, &part[i], uint32(i+1))
		}
		w.close(list)
		if err := c.send(command, nil); err != nil {
			return fmt.Errorf("changing entries of the ipset %s: %w", set, err)
		}
	}
	return nil
}
