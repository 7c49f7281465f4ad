package netfilter

import (
	"net/netip"

	"github.com/portway/portway/modules/dataplane"
)

// SetType is the type of an ipset.
type SetType string

// The types that planes use.
const (
	HashIP        SetType = "hash:ip"
	HashNet       SetType = "hash:net"
	HashIPPort    SetType = "hash:ip,port"
	HashIPPortIP  SetType = "hash:ip,port,ip"
	HashIPPortNet SetType = "hash:ip,port,net"
	BitmapPort    SetType = "bitmap:port"
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
	// SecondNet is the prefix of a hash:ip,port,net; its length is not 0.
	SecondNet netip.Prefix
	// Mark is set on packets by [MapMark], in the bits of MarkMask.
	Mark, MarkMask uint32
	// Timeout is the time that is left, in seconds; zero is for ever.
	Timeout uint32
}

// SetChange adds an entry to a set or takes it out.
type SetChange struct {
	Set   string
	Type  SetType
	Entry SetEntry
}

// SetPlan is a list of changes to sets. They are made in the order of the
// fields, and each may be made twice without harm.
type SetPlan struct {
	// Create makes sets with their entries; they may exist already.
	Create []Set
	// Replace puts sets in the place of those of the same name that differ
	// in more than their entries, even while rules use them. Then the type
	// and family must be the same, or it fails with ErrSetInUse or the like.
	Replace []Set
	Add     []SetChange
	Remove  []SetChange
	Destroy []string
}
