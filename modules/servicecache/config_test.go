package servicecache

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"testing"
	"time"
)

// A Config that was saved is the same when read, but for the time of the start.
func TestConfigAsJSON(t *testing.T) {
	want := Config{
		ProxyName: "x", NodeName: "n1", NodeIPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Start: time.Unix(1, 0),
		DetectLocal: DetectInterfaceNamePrefix, ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Interface: "veth",
		MasqueradeAll: true, MasqueradeBit: 3, NodePortAddresses: []string{"primary"},
		ExternalIPs: ListedExternalIPs, ExternalIPRanges: []netip.Prefix{netip.MustParsePrefix("fd00::/8")},
		DropEmptyLocal: true, DropUnallocated: true, DropInvalid: true,
	}
	for i := range reflect.TypeFor[Config]().NumField() {
		if reflect.ValueOf(want).Field(i).IsZero() {
			t.Errorf("the test leaves out %s", reflect.TypeFor[Config]().Field(i).Name)
		}
	}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var have Config
	if err := json.Unmarshal(text, &have); err != nil {
		t.Fatal(err)
	}
	want.Start = time.Time{}
	if !reflect.DeepEqual(have, want) {
		t.Errorf("%s\nis read as %+v\nwant %+v", text, have, want)
	}
	for _, text := range []string{`{"detectLocal": "guess"}`, `{"externalIPs": "some"}`} {
		if err := json.Unmarshal([]byte(text), &have); err == nil {
			t.Errorf("%s is read as %+v", text, have)
		}
	}
	if text, err := json.Marshal(Config{DetectLocal: 99}); err == nil {
		t.Errorf("a way that does not exist is %s", text)
	}
}
