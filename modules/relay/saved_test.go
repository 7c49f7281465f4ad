package relay

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
)

// everyListening has a value in every field.
func everyListening() []Listening {
	addr := netip.MustParseAddrPort
	return []Listening{
		{
			Protocol: dataplane.UDP, Addr: addr("192.0.2.10:20001"),
			Route: Route{
				Name:  dataplane.ServicePortName{Namespace: "kube-system", Name: "dns", Port: "dns", Protocol: dataplane.UDP},
				Scope: dataplane.Local, Affinity: 3 * time.Hour, Serving: []netip.AddrPort{addr("10.244.1.3:53")},
				Endpoints: []dataplane.Endpoint{{Addr: addr("10.244.1.2:53"), Weight: 3, Local: true}},
			},
			Bound:   map[netip.Addr]Binding{netip.MustParseAddr("10.244.1.9"): {addr("10.244.1.2:53"), 1500 * time.Millisecond}},
			Resting: map[netip.AddrPort]time.Duration{addr("10.244.1.2:53"): time.Second},
		},
		{
			Protocol: dataplane.TCP, Addr: addr("[fd00::10]:20001"),
			Route: Route{
				Name:      dataplane.ServicePortName{Namespace: "shop", Name: "web", Protocol: dataplane.TCP},
				Endpoints: []dataplane.Endpoint{{Addr: addr("[fd00::2]:80"), Weight: 1}, {Addr: addr("[fd00::3]:80"), Weight: 1}},
			},
			Bound: map[netip.Addr]Binding{}, Resting: map[netip.AddrPort]time.Duration{},
		},
	}
}

func TestTableIsReadAsWritten(t *testing.T) {
	var text strings.Builder
	if err := WriteTable(&text, everyListening()); err != nil {
		t.Fatal(err)
	}
	table, err := ReadTable(strings.NewReader(text.String()))
	if err != nil || !reflect.DeepEqual(table, everyListening()) {
		t.Errorf("%v: written as\n%s and read as\n%+v", err, &text, table)
	}
	if l, ok := Find(table, dataplane.TCP, netip.MustParseAddrPort("192.0.2.10:20001")); ok {
		t.Errorf("%+v listens for TCP", l)
	}
}

func TestReadTableRefuses(t *testing.T) {
	const good = `{"protocol": "TCP", "address": "192.0.2.1:1", "namespace": "n", "service": "s", "scope": "Cluster", "endpoints": [{"address": "10.0.0.1:1", "weight": 1}]}`
	change := func(from, to string) string { return "[\n" + strings.Replace(good, from, to, 1) + "]" }
	for _, row := range []struct{ text, want string }{
		{"", "line 1: want a JSON array"},
		{"{}", "line 1: want a JSON array"},
		{"[\n\n7]", "line 3: "},
		{"[" + good, "line 1: the array of listeners does not end"},
		{"[" + good + "]\n7", "line 2: there is something behind"},
		{"[" + good + ",\n" + good + "]", "line 2: listener at TCP 192.0.2.1:1: another one listens there already"},
		{change("TCP", "SCTP"), "line 2: listener at SCTP 192.0.2.1:1: nothing relays SCTP"},
		{change("TCP", "GRE"), "unknown protocol"},
		{change("Cluster", "All"), `unknown scope "All"`},
		{change("192.0.2.1:1", "192.0.2.1"), "line 2: "},
		{change("192.0.2.1:1", "192.0.2.1:0"), "no address and port"},
		{change(`"n"`, `""`), "name no port of a Service"},
		{change(`{"address": "10.0.0.1:1", "weight": 1}`, ""), "no endpoints"},
		{change(`"weight": 1`, `"weight": 0`), "with weight 0 cannot be an endpoint"},
		{change("10.0.0.1:1", "[fd00::1]:1"), "cannot be an endpoint"},
		{change(`"scope"`, `"affinity": "-1s", "scope"`), "less than none"},
		{change(`"scope"`, `"bound": [{"client": "10.0.0.1"}], "scope"`), "cannot be bound"},
		{change(`"scope"`, `"resting": [{}], "scope"`), "left alone has no address"},
		{change(`"scope"`, `"scopes": 1, "scope"`), "unknown field"},
	} {
		if table, err := ReadTable(strings.NewReader(row.text)); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s is read as %+v, %v, want %q", row.text, table, err, row.want)
		}
	}
}

// What is read of a table is the same when it is written and read again.
func FuzzReadTable(f *testing.F) {
	var text strings.Builder
	if err := WriteTable(&text, everyListening()); err != nil {
		f.Fatal(err)
	}
	f.Add(text.String())
	f.Add("[]")
	f.Fuzz(func(t *testing.T, text string) {
		table, err := ReadTable(strings.NewReader(text))
		if err != nil {
			return
		}
		var written strings.Builder
		if err := WriteTable(&written, table); err != nil {
			t.Fatal(err)
		}
		again, err := ReadTable(strings.NewReader(written.String()))
		if err != nil || len(again) != len(table) {
			t.Fatalf("%q is written as %q, which is read as %+v, %v", text, &written, again, err)
		}
		for i := range table {
			if !again[i].Route.Equal(table[i].Route) || !reflect.DeepEqual(again[i].Bound, table[i].Bound) {
				t.Errorf("%+v is read again as %+v", table[i], again[i])
			}
		}
	})
}
