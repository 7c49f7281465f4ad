package netfilter

// Around cuts a plan into what comes before rules change and after them, so
// that a flow always ends as before or as after. Entries of most sets refuse
// flows that no rule translates: they are added early and taken out late. The
// entries of others give an address a meaning that rules fill in: they are added
// when the rules are right, and taken out while they still are.
func (p SetPlan) Around(givesMeaning func(set string) bool) (before, after SetPlan) {
	before.Replace, after.Destroy = p.Replace, p.Destroy
	for _, s := range p.Create {
		if givesMeaning(s.Name) {
			for _, e := range s.Entries {
				after.Add = append(after.Add, SetChange{Set: s.Name, Type: s.Type, Entry: e})
			}
			s.Entries = nil
		}
		before.Create = append(before.Create, s)
	}
	for _, c := range p.Add {
		if givesMeaning(c.Set) {
			after.Add = append(after.Add, c)
		} else {
			before.Add = append(before.Add, c)
		}
	}
	for _, c := range p.Remove {
		if givesMeaning(c.Set) {
			before.Remove = append(before.Remove, c)
		} else {
			after.Remove = append(after.Remove, c)
		}
	}
	return before, after
}
