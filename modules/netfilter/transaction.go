package netfilter

import (
	"strconv"
)

// Transaction is a set of changes to one table. The zero value of every
// field changes nothing. The changes are made in the order of the fields.
type Transaction struct {
	Table Table
	// Chains are written whole: made if they are missing, emptied if they
	// are not, then filled.
	Chains []Chain
	// Remove takes rules out of chains that others own. A rule must be
	// exactly as it was read.
	Remove []PlacedRule
	// Insert puts rules into chains that others own.
	Insert []PlacedRule
	// Delete removes chains, whatever is in them and whether they exist or
	// not. Nothing may refer to them any more once the rest is done.
	Delete []string
}

// PlacedRule is a rule at a place in a chain that others own.
type PlacedRule struct {
	Chain string
	// At is the number that the rule gets, the first being 1; zero puts it
	// at the end. It does not count for Remove.
	At   int
	Rule Rule
}

// IsEmpty says whether the transaction changes nothing.
func (tx *Transaction) IsEmpty() bool {
	return len(tx.Chains)+len(tx.Remove)+len(tx.Insert)+len(tx.Delete) == 0
}

// String is the transaction as iptables-restore reads it.
func (tx Transaction) String() string { return string(tx.Append(nil)) }

// Append adds what String returns to b.
func (tx *Transaction) Append(b []byte) []byte {
	b = append(append(append(b, '*'), tx.Table...), '\n')
	for i := range tx.Chains {
		b = appendDeclaration(b, tx.Chains[i].Name)
	}
	for _, name := range tx.Delete {
		b = appendDeclaration(b, name)
	}
	for i := range tx.Chains {
		c := &tx.Chains[i]
		for j := range c.Rules {
			b = appendRule(b, "-A ", c.Name, 0, &c.Rules[j])
		}
	}
	for i := range tx.Remove {
		b = appendRule(b, "-D ", tx.Remove[i].Chain, 0, &tx.Remove[i].Rule)
	}
	for i := range tx.Insert {
		p := &tx.Insert[i]
		if p.At == 0 {
			b = appendRule(b, "-A ", p.Chain, 0, &p.Rule)
		} else {
			b = appendRule(b, "-I ", p.Chain, p.At, &p.Rule)
		}
	}
	for _, name := range tx.Delete {
		b = append(append(append(b, "-X "...), name...), '\n')
	}
	return append(b, "COMMIT\n"...)
}

// appendDeclaration makes a chain or empties it. That comes first for all of
// them, because a rule may jump to a chain that is filled after it.
func appendDeclaration(b []byte, chain string) []byte {
	b = append(append(b, ':'), chain...)
	return append(b, " - [0:0]\n"...)
}

func appendRule(b []byte, command, chain string, at int, r *Rule) []byte {
	b = append(append(b, command...), chain...)
	b = append(b, ' ')
	if at != 0 {
		b = append(strconv.AppendInt(b, int64(at), 10), ' ')
	}
	b = r.Append(b)
	return append(b, '\n')
}

// chainAt tells which line of Append(nil) belongs to which chain; lines count
// from 1. It returns "" for lines that belong to none.
func (tx *Transaction) chainAt(line int) string {
	n := line - 2 // the table is line 1
	names := len(tx.Chains)
	switch {
	case n < 0:
		return ""
	case n < names:
		return tx.Chains[n].Name
	case n < names+len(tx.Delete):
		return tx.Delete[n-names]
	}
	n -= names + len(tx.Delete)
	for i := range tx.Chains {
		if n < len(tx.Chains[i].Rules) {
			return tx.Chains[i].Name
		}
		n -= len(tx.Chains[i].Rules)
	}
	for _, placed := range [][]PlacedRule{tx.Remove, tx.Insert} {
		if n < len(placed) {
			return placed[n].Chain
		}
		n -= len(placed)
	}
	if n < len(tx.Delete) {
		return tx.Delete[n]
	}
	return ""
}

// Split cuts a transaction into several of at most size chains each, and
// rulesPerChain times as many rules, for a first start with many chains:
// iptables-nft 1.8.9 needs time quadratic in the chains that one restore makes,
// and in its rules (24,000 in one took 42 s where parts of 2,500 took 8). Chains
// come before those that jump to them, and everything else comes last, so that
// between two parts nothing leads into a chain that is not written yet. Chains
// that are in use already do change one after the other.
func (tx Transaction) Split(size int) []Transaction {
	if size <= 0 || len(tx.Chains) <= size && tx.rules() <= size*rulesPerChain {
		return []Transaction{tx}
	}
	parts := []Transaction{{Table: tx.Table}}
	chains, rules := 0, 0
	for _, c := range tx.inOrder() {
		if chains > 0 && (chains == size || rules+len(c.Rules) > size*rulesPerChain) {
			parts = append(parts, Transaction{Table: tx.Table})
			chains, rules = 0, 0
		}
		last := &parts[len(parts)-1]
		last.Chains = append(last.Chains, c)
		chains, rules = chains+1, rules+len(c.Rules)
	}
	last := &parts[len(parts)-1]
	last.Remove, last.Insert, last.Delete = tx.Remove, tx.Insert, tx.Delete
	return parts
}

// rulesPerChain is what the chains of one part may have on average.
const rulesPerChain = 5

// rules counts those that fill chains.
func (tx *Transaction) rules() int {
	n := 0
	for i := range tx.Chains {
		n += len(tx.Chains[i].Rules)
	}
	return n
}

// inOrder returns the chains so that each comes after those it jumps to.
func (tx *Transaction) inOrder() []Chain {
	index := make(map[string]int, len(tx.Chains))
	for i := range tx.Chains {
		index[tx.Chains[i].Name] = i
	}
	order := make([]Chain, 0, len(tx.Chains))
	var visit func(i int)
	visit = func(i int) {
		c := tx.Chains[i]
		delete(index, c.Name)
		for j := range c.Rules {
			if to, ok := index[c.Rules[j].Target.chain()]; ok {
				visit(to)
			}
		}
		order = append(order, c)
	}
	for i := range tx.Chains {
		if _, ok := index[tx.Chains[i].Name]; ok {
			visit(i)
		}
	}
	return order
}

// chain is the chain that the target goes to, or "".
func (t *Target) chain() string {
	if t.Kind == TargetJump || t.Kind == TargetGoto {
		return t.Name
	}
	return ""
}
