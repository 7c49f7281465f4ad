package program

import (
	"github.com/portway/portway/modules/netfilter"
)

// dirt is what must be compared with the kernel.
type dirt struct {
	// own chains with their rules; nil for one that must go.
	own    map[ChainID][]netfilter.Rule
	shared map[ChainID]bool
	// entries and sets with what the kernel has of them.
	entries map[netfilter.SetChange]presence
	sets    map[string]presence
}

// presence is whether the kernel has something.
type presence uint8

const (
	unknown presence = iota // a change may have been made or not
	absent
	present
)

func presenceOf(there bool) presence {
	if there {
		return present
	}
	return absent
}

// differs tells whether something must be written, to be sure.
func (p presence) differs(wanted bool) bool { return p != presenceOf(wanted) }

// doubt is for a write that failed: sets may be as they were, or not.
func (d *dirt) doubt() {
	for e := range d.entries {
		d.entries[e] = unknown
	}
	for s := range d.sets {
		d.sets[s] = unknown
	}
}

func newDirt() dirt {
	return dirt{
		own: make(map[ChainID][]netfilter.Rule), shared: make(map[ChainID]bool),
		entries: make(map[netfilter.SetChange]presence), sets: make(map[string]presence),
	}
}
