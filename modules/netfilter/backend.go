package netfilter

import "github.com/portway/portway/modules/dataplane"

// Backend is a family's iptables programs of one kind.
type Backend struct {
	// Name is "nft", "legacy", or "iptables" where the programs do not say
	// which they are.
	Name   string
	Family dataplane.Family
	// RandomFully says that Masquerade(true) works.
	RandomFully bool

	save, restore string
}
