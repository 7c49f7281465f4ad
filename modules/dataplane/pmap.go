package dataplane

import (
	"hash/fnv"
	"iter"
	"net/netip"
	"slices"
)

// A pmap is an immutable map: an edit makes a new one that shares with the old
// one all that did not change. Keys are spread over a fixed number of sorted
// slices; an edit copies the touched slices and the array of slice headers, so
// with 10,000 entries one change copies about 300 of them, and comparing two
// versions looks at 256 pointers and the entries of the touched slices.
type pmap[K pkey[K], V any] struct {
	shards *[pmapShards][]pentry[K, V]
	n      int
}

const pmapShards = 256

type pkey[K any] interface {
	comparable
	hash() uint32
	Compare(K) int
}

type pentry[K, V any] struct {
	key K
	val V
}

func (m pmap[K, V]) len() int { return m.n }

func (m pmap[K, V]) get(k K) (V, bool) {
	if m.shards != nil {
		s := m.shards[k.hash()%pmapShards]
		if i, ok := pfind(s, k); ok {
			return s[i].val, true
		}
	}
	var zero V
	return zero, false
}

func pfind[K pkey[K], V any](s []pentry[K, V], k K) (int, bool) {
	return slices.BinarySearchFunc(s, k, func(e pentry[K, V], k K) int { return e.key.Compare(k) })
}

// all yields the entries in an order that depends on nothing but the keys.
func (m pmap[K, V]) all() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		if m.shards == nil {
			return
		}
		for _, s := range m.shards {
			for _, e := range s {
				if !yield(e.key, e.val) {
					return
				}
			}
		}
	}
}

// A pedit collects changes to a pmap; the original stays as it is.
type pedit[K pkey[K], V any] struct {
	m     pmap[K, V]
	fresh *[pmapShards]bool // shards that belong to this edit; nil until the first change
}

func (m pmap[K, V]) edit() *pedit[K, V] { return &pedit[K, V]{m: m} }

func (e *pedit[K, V]) own(shard uint32) {
	if e.fresh == nil {
		root := new([pmapShards][]pentry[K, V])
		if e.m.shards != nil {
			*root = *e.m.shards
		}
		e.m.shards, e.fresh = root, new([pmapShards]bool)
	}
	if !e.fresh[shard] {
		e.m.shards[shard] = slices.Clone(e.m.shards[shard])
		e.fresh[shard] = true
	}
}

func (e *pedit[K, V]) get(k K) (V, bool) { return e.m.get(k) }

func (e *pedit[K, V]) put(k K, v V) {
	shard := k.hash() % pmapShards
	e.own(shard)
	s := e.m.shards[shard]
	i, found := pfind(s, k)
	if found {
		s[i].val = v
		return
	}
	e.m.shards[shard] = slices.Insert(s, i, pentry[K, V]{k, v})
	e.m.n++
}

func (e *pedit[K, V]) delete(k K) {
	if _, ok := e.m.get(k); !ok {
		return
	}
	shard := k.hash() % pmapShards
	e.own(shard)
	i, _ := pfind(e.m.shards[shard], k)
	e.m.shards[shard] = slices.Delete(e.m.shards[shard], i, i+1)
	e.m.n--
}

// done returns the edited map; the edit must not be used again.
func (e *pedit[K, V]) done() pmap[K, V] { return e.m }

// pdiff yields the keys whose values differ, with both values; a key that is
// missing on one side has the zero value there.
func pdiff[K pkey[K], V comparable](a, b pmap[K, V]) iter.Seq2[K, [2]V] {
	return func(yield func(K, [2]V) bool) {
		for i := range pmapShards {
			if !diffShard(a.shard(i), b.shard(i), yield) {
				return
			}
		}
	}
}

func (m pmap[K, V]) shard(i int) []pentry[K, V] {
	if m.shards == nil {
		return nil
	}
	return m.shards[i]
}

func diffShard[K pkey[K], V comparable](a, b []pentry[K, V], yield func(K, [2]V) bool) bool {
	if len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) {
		return true
	}
	var zero V
	for len(a) > 0 || len(b) > 0 {
		c := 0
		switch {
		case len(b) == 0:
			c = -1
		case len(a) == 0:
			c = 1
		default:
			c = a[0].key.Compare(b[0].key)
		}
		ok := true
		switch {
		case c < 0:
			ok, a = yield(a[0].key, [2]V{a[0].val, zero}), a[1:]
		case c > 0:
			ok, b = yield(b[0].key, [2]V{zero, b[0].val}), b[1:]
		default:
			if a[0].val != b[0].val {
				ok = yield(a[0].key, [2]V{a[0].val, b[0].val})
			}
			a, b = a[1:], b[1:]
		}
		if !ok {
			return false
		}
	}
	return true
}

// addrKey makes an address a key.
type addrKey struct{ netip.Addr }

func (k addrKey) hash() uint32          { return hashAddr(k.Addr) }
func (k addrKey) Compare(o addrKey) int { return k.Addr.Compare(o.Addr) }

func hashStrings(ss ...string) uint32 {
	h := fnv.New32a()
	for _, s := range ss {
		_, _ = h.Write([]byte(s)) // a hash never fails
		_, _ = h.Write([]byte{0})
	}
	return h.Sum32()
}

func hashAddr(a netip.Addr) uint32 {
	b := a.As16()
	h := fnv.New32a()
	_, _ = h.Write(b[:])
	return h.Sum32()
}
