package report

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/portway/portway/bench/internal/measure"
	"github.com/portway/portway/bench/internal/proxy"
)

var shape = Shape{10000, 5}

func results(ours, theirs measure.Figures) *Results {
	return &Results{Runs: []Run{
		{Shape: shape, Mode: "iptables-nft", Proxy: proxy.Portway, Figures: ours},
		{Shape: shape, Mode: "iptables-nft", Proxy: proxy.KubeProxy, Figures: theirs},
	}}
}

func TestValueIsTheMedian(t *testing.T) {
	r := results(measure.Figures{"cold.all": 1}, nil)
	for _, v := range []float64{9, 3, 2} {
		r.Runs = append(r.Runs, Run{Shape: shape, Mode: "iptables-nft", Proxy: proxy.Portway, Figures: measure.Figures{"cold.all": v}})
	}
	if v, ok := r.Value(shape, "iptables-nft", proxy.Portway, "cold.all"); !ok || v != 2.5 {
		t.Errorf("the median of 1, 9, 3 and 2 is %v, want 2.5", v)
	}
	if _, ok := r.Value(shape, "iptables-nft", proxy.KubeProxy, "cold.all"); ok {
		t.Error("a value that was not measured has a median")
	}
}

func TestRatio(t *testing.T) {
	r := results(measure.Figures{"a": 2, "zero": 0}, measure.Figures{"a": 10, "zero": 5})
	for _, row := range []struct {
		figure measure.Figure
		want   float64
		ok     bool
	}{
		{measure.Figure{Name: "a"}, 5, true},
		{measure.Figure{Name: "a", Higher: true}, 0.2, true},
		{measure.Figure{Name: "a", Alone: true}, 0, false},
		{measure.Figure{Name: "zero"}, 0, false},
		{measure.Figure{Name: "missing"}, 0, false},
	} {
		if got, ok := r.Ratio(shape, "iptables-nft", row.figure); got != row.want || ok != row.ok {
			t.Errorf("%+v: %v, %v, want %v, %v", row.figure, got, ok, row.want, row.ok)
		}
	}
}

func TestJudge(t *testing.T) {
	r := results(measure.Figures{"good": 1, "bad": 5, "most": 3, "little": 1}, measure.Figures{"good": 30, "bad": 10})
	at := func(figure string, ratio, most float64) Floor {
		return Floor{Shape: shape, Mode: "iptables-nft", Figure: figure, Ratio: ratio, Most: most}
	}
	floors := []Floor{
		at("good", 30, 0), at("bad", 3, 0), at("most", 0, 2), at("little", 0, 2), at("missing", 2, 0),
		{Shape: Shape{1, 1}, Mode: "iptables-nft", Figure: "good", Ratio: 100},
		{Shape: shape, Mode: "iptables-nft", Figure: "bad", Over: "most", Most: 2},
		{Shape: shape, Mode: "iptables-nft", Figure: "bad", Over: "good", Most: 2},
		{Shape: shape, Mode: "iptables-nft", Figure: "bad", Over: "missing", Most: 2},
	}
	var kept []bool
	for _, v := range r.Judge(floors) {
		kept = append(kept, v.Kept)
	}
	if want := []bool{true, false, false, true, false, true, false, false}; !reflect.DeepEqual(kept, want) {
		t.Errorf("kept: %v, want %v", kept, want)
	}
}

func TestFloorsNameFigures(t *testing.T) {
	known := map[string]bool{}
	for _, f := range measure.Catalog() {
		if known[f.Name] {
			t.Errorf("the figure %s is there twice", f.Name)
		}
		known[f.Name] = true
	}
	for _, f := range Floors() {
		if !known[f.Figure] || f.Over != "" && !known[f.Over] {
			t.Errorf("a floor is about %q, which is no figure", f.Figure)
		}
	}
}

func TestTablesSurviveAFile(t *testing.T) {
	r := results(measure.Figures{"cold.all": 1.5}, measure.Figures{"cold.all": 60, "rss.peak": 82})
	file := filepath.Join(t.TempDir(), "results.json")
	if err := r.Write(file); err != nil {
		t.Fatal(err)
	}
	read, err := Read(file)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := read.WriteTables(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"### 10000 Services × 5 endpoints, iptables-nft",
		"| start to all Services | 1.50 | 60 | s | 40 |",
		"| RSS, peak | – | 82 | MiB |  |",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the tables lack %q:\n%s", want, &text)
		}
	}
}
