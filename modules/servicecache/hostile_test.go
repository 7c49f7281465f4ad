package servicecache

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestHostileObjects feeds objects that are right but for a few fields, which
// are missing, null, of the wrong size or nonsense.
// Proves kube-router#1583.
func TestHostileObjects(t *testing.T) {
	service := testService("s", exposed, internalLocal, externalLocal, sourceRanges("10.0.0.0/8"), clientIP(new(int32(5))))
	service.Spec.HealthCheckNodePort = 32000
	slice := testSlice("s", "1", ep(e1, "n1", "rst", "zone:a", "n1"), ep(e2, "n2", "rs-", "zone:b"))
	rapid.Check(t, func(t *rapid.T) {
		c, err := New(testConfig())
		if err != nil {
			t.Fatal(err)
		}
		c.SetLocal(testLocal())
		steps := []func(){
			func() { read(spoil(t, service), c.SetService) },
			func() { read(spoil(t, slice), c.SetEndpointSlice) },
			func() { read(spoil(t, testNode()), c.SetNode) },
			func() {
				read(spoil(t, testCIDR("10.96.0.0/16")), c.SetServiceCIDR)
			},
			func() { checkStep(t, c, build(c)) },
		}
		for range 12 {
			rapid.SampledFrom(steps).Draw(t, "step")()
		}
		checkStep(t, c, build(c))
	})
}

// spoil returns the JSON of an object with some values replaced.
func spoil(t *rapid.T, o any) []byte {
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	var tree any
	if err := json.Unmarshal(text, &tree); err != nil {
		t.Fatal(err)
	}
	text, err = json.Marshal(spoilTree(t, tree))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func spoilTree(t *rapid.T, v any) any {
	if one(t, 25, "spoil") {
		return rapid.SampledFrom([]any{
			nil, "", "None", "x", "::1", "fe80::1%eth0", "010.0.0.1", "::ffff:10.0.0.1/100", -1, 0, 70000, 1 << 40, true, false,
			[]any{},
			[]any{nil},
			map[string]any{},
			"Local", "ClientIP", "UDP", "IPv6", "0.0.0.0/0", "\x00",
		}).Draw(t, "value")
	}
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = spoilTree(t, v[i])
		}
		if len(v) > 0 && one(t, 10, "twice") {
			v = append(v, v[0])
		}
		return v
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			v[k] = spoilTree(t, v[k])
		}
	}
	return v
}
