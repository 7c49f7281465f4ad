package dataplanetest

import (
	"reflect"
	"slices"

	"pgregory.net/rapid"
)

// ways lead through some states to the last of them. However the API server's
// watch delivers a change, it is one of these.
var ways = map[string]func([]State) []State{
	"reversed": func(s []State) []State {
		back := slices.Clone(s[:len(s)-1])
		slices.Reverse(back)
		return append(back, s[len(s)-1])
	},
	"repeated": func(s []State) []State {
		var twice []State
		for _, one := range s {
			twice = append(twice, one, one)
		}
		return twice
	},
	"back and forth": func(s []State) []State {
		last := s[len(s)-1]
		return append(slices.Clone(s), s[0], last)
	},
	"split": func(s []State) []State {
		parts := s[:1:1]
		for _, next := range s[1:] {
			parts = append(parts, steps(parts[len(parts)-1], next)...)
		}
		return parts
	},
	"squashed": func(s []State) []State { return []State{s[0], s[len(s)-1]} },
}

// orders is law 3 again: not only forward, but by every way the kernel ends in
// the same state.
// Proves S1.12, S9.6.
func orders(t *rapid.T, cfg Config) {
	states := []State{States().Draw(t, "state")}
	for range rapid.IntRange(1, 3).Draw(t, "steps") {
		states = append(states, Successor(states[len(states)-1]).Draw(t, "next state"))
	}
	way := rapid.SampledFrom([]string{"squashed", "repeated", "reversed", "back and forth", "split"}).Draw(t, "way")
	b := newBed(t, cfg, states[0])
	for _, s := range ways[way](states) {
		b.mustSync(s)
	}
	b.checkSettled()
	b.checkExplained(shotsOf(t, b, 25))
	b.checkArrivals(shotsOf(t, b, 100))
	b.checkPathIndependent()
}

// steps change one Service at a time.
func steps(from, to State) []State {
	var all []State
	at := to
	at.Services = slices.Clone(from.Services)
	for slot := range maxServices {
		old, had := find(at.Services, slot)
		next, has := find(to.Services, slot)
		if had == has && reflect.DeepEqual(old, next) {
			continue
		}
		services := slices.DeleteFunc(slices.Clone(at.Services), func(s Service) bool { return s.Name == slotName(slot) })
		if has {
			services = append(services, next)
		}
		at.Services = services
		all = append(all, at)
	}
	return append(all, to)
}
