package netfilter

import (
	"crypto/sha256"
	"encoding/base32"
	"maps"
	"slices"
)

// PlanSets plans how to get from the sets that are there to those wanted.
// Both are of one owner: a set that is there and not wanted is destroyed.
//
// Rules fill and empty sets whose entries expire, so there only the set itself
// is compared, never its entries.
func PlanSets(want, have []Set) SetPlan {
	var plan SetPlan
	old := make(map[string]*Set, len(have))
	for i := range have {
		old[have[i].Name] = &have[i]
	}
	for _, w := range want {
		h, ok := old[w.Name]
		delete(old, w.Name)
		switch {
		case !ok:
			plan.Create = append(plan.Create, w)
		case !w.SameHeader(h):
			plan.Replace = append(plan.Replace, w)
		case !w.Expires:
			plan.diff(&w, h)
		}
	}
	plan.Destroy = slices.Sorted(maps.Keys(old))
	return plan
}

const defaultMaxEntries = 65536 // of the kernel

// SameHeader says whether two sets differ in their entries only.
func (s *Set) SameHeader(o *Set) bool {
	return s.Type == o.Type && s.Family == o.Family && s.Expires == o.Expires &&
		s.Timeout == o.Timeout && s.Marks == o.Marks &&
		s.FirstPort == o.FirstPort && s.LastPort == o.LastPort &&
		(s.Type == BitmapPort || orDefault(s.MaxEntries) == orDefault(o.MaxEntries))
}

func orDefault(n uint32) uint32 {
	if n == 0 {
		return defaultMaxEntries
	}
	return n
}

// diff plans the entries of one set. An entry whose mark differs is added
// again, which changes it in place.
func (p *SetPlan) diff(want, have *Set) {
	old := make(map[SetEntry]SetEntry, len(have.Entries))
	for _, e := range have.Entries {
		old[e.Key()] = e
	}
	for _, e := range want.Entries {
		if is, ok := old[e.Key()]; !ok || is.Mark != e.Mark || is.MarkMask != e.MarkMask {
			p.Add = append(p.Add, SetChange{Set: want.Name, Type: want.Type, Entry: e})
		}
		delete(old, e.Key())
	}
	for _, e := range have.Entries {
		if _, unwanted := old[e.Key()]; unwanted {
			p.Remove = append(p.Remove, SetChange{Set: want.Name, Type: want.Type, Entry: e})
		}
	}
}

// Key is what the kernel looks an entry up by.
func (e SetEntry) Key() SetEntry {
	e.Mark, e.MarkMask, e.Timeout = 0, 0, 0
	return e
}

// IsEmpty says whether the plan changes nothing.
func (p *SetPlan) IsEmpty() bool {
	return len(p.Create)+len(p.Replace)+len(p.Add)+len(p.Remove)+len(p.Destroy) == 0
}

// Grow is the part of the plan that must be carried out before the rules
// change, as rules may name only sets that exist.
func (p SetPlan) Grow() SetPlan { return SetPlan{Create: p.Create, Replace: p.Replace, Add: p.Add} }

// Shrink is the rest, for after the rules have changed.
func (p SetPlan) Shrink() SetPlan { return SetPlan{Remove: p.Remove, Destroy: p.Destroy} }

// Limits of the kernel for names.
const (
	maxSetName   = 31
	maxChainName = 28
)

// hashLength is what kube-proxy uses: 80 bits, no two names of a cluster meet.
const hashLength = 16

// SetName makes the name of a set from a prefix that says what it is for and
// a key that says which one it is.
func SetName(prefix, key string) string { return hashedName(prefix, key, maxSetName) }

// ChainName does for a chain what [SetName] does for a set.
func ChainName(prefix, key string) string { return hashedName(prefix, key, maxChainName) }

func hashedName(prefix, key string, limit int) string {
	sum := sha256.Sum256([]byte(key))
	hash := base32.StdEncoding.EncodeToString(sum[:])[:hashLength]
	return prefix[:min(len(prefix), limit-hashLength)] + hash
}
