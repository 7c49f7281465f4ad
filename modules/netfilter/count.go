package netfilter

import "slices"

// Writes counts the rules and chains that the transaction changes.
func (tx *Transaction) Writes() int {
	n := len(tx.Remove) + len(tx.Insert) + len(tx.Delete)
	for _, c := range tx.Chains {
		n += max(1, len(c.Rules))
	}
	return n
}

// Writes counts the sets and entries that the plan changes.
func (p *SetPlan) Writes() int {
	n := len(p.Add) + len(p.Remove) + len(p.Destroy)
	for _, s := range slices.Concat(p.Create, p.Replace) {
		n += 1 + len(s.Entries)
	}
	return n
}
