package netfilter

import (
	"net/netip"

	"github.com/portway/portway/modules/dataplane"
)

// SetType is the type of an ipset.
type SetType string

// The types that planes use.
const (
	HashIP       SetType = "hash:ip"
	HashNet      SetType = "hash:net"
	HashIPPort   SetType = "hash:ip,port"
	HashIPPortIP SetType = "hash:ip,port,ip"
	BitmapPort   SetType = "bitmap:port"
)

// Set is an ipset with its entries.
type Set struct {
	Name string
	Type SetType
	// Family is zero for a bitmap.
	Family dataplane.Family
	// MaxEntries limits a hash; zero is the kernel's default, 65536.
	MaxEntries uint32
	// Expires lets entries have timeouts; Timeout is what an entry gets that
	// names none, zero being for ever. Both in seconds.
	Expires bool
	Timeout uint32
	// Marks lets entries carry a mark for [MapMark].
	Marks bool
	// FirstPort and LastPort are the range of a bitmap.
	FirstPort, LastPort uint16

	Entries []SetEntry
}

// SetEntry is an entry of a set: which fields count depends on its type.
type SetEntry struct {
	// Net is the address, or the prefix in a hash:net.
	Net      netip.Prefix
	Protocol dataplane.Protocol
	Port     uint16
	// Second is the last address of a hash:ip,port,ip.
	Second netip.Addr
	// Mark is set on packets by [MapMark], in the bits of MarkMask.
	Mark, MarkMask uint32
	// Timeout is the time that is left, in seconds; zero is for ever.
	Timeout uint32
}

// SetChange adds an entry to a set or takes it out.
type SetChange struct {
	Set   string
	Entry SetEntry
}

// SetPlan is a list of changes to sets. They are made in the order of the
// fields.
type SetPlan struct {
	// Create makes sets with their entries.
	Create []Set
	Add    []SetChange
	Remove []SetChange
	// Swap exchanges the contents of two sets of one type.
	Swap    [][2]string
	Destroy []string
}
