package report

import (
	"fmt"
	"slices"

	"github.com/portway/portway/bench/internal/measure"
	"github.com/portway/portway/bench/internal/proxy"
)

// Floor is the least that a ratio may be, or the most that a figure of Portway's
// may be.
type Floor struct {
	Shape  Shape
	Mode   string
	Figure string
	Ratio  float64 // zero: Most holds instead
	Most   float64
	Over   string // the figure of Portway's that Figure is divided by; empty: none
}

// settingFloors are the floors of one mode.
type settingFloors struct {
	mode                                         string
	start, endpoint, cpu, memory, packet, usable float64
}

func (m settingFloors) at(s Shape) []Floor {
	floors := []Floor{
		{Shape: s, Mode: m.mode, Figure: "cold.all", Ratio: m.start},
		{Shape: s, Mode: m.mode, Figure: "cold.kubernetes", Most: m.usable},
		{Shape: s, Mode: m.mode, Figure: "cold.dns", Most: m.usable},
		{Shape: s, Mode: m.mode, Figure: "endpoint.p99", Ratio: m.endpoint},
		{Shape: s, Mode: m.mode, Figure: "endpoint.cpu", Ratio: m.cpu},
		{Shape: s, Mode: m.mode, Figure: "rss.settled", Ratio: m.memory},
		{Shape: s, Mode: m.mode, Figure: "packet.last", Ratio: m.packet},
		{Shape: s, Mode: m.mode, Figure: "churn.lost"},
		{Shape: s, Mode: m.mode, Figure: "restart.broken"},
		{Shape: s, Mode: m.mode, Figure: "restart.refused"},
		{Shape: s, Mode: m.mode, Figure: "affinity.p50", Over: "endpoint.p50", Most: 2},
		{Shape: s, Mode: m.mode, Figure: "affinity.cpu", Over: "endpoint.cpu", Most: 2},
	}
	if m.mode == "iptables-nft" { // the others do not tell of writes
		floors = append(floors, Floor{Shape: s, Mode: m.mode, Figure: "restart.rules"})
	}
	return floors
}

// small are floors for a run of a few minutes, below what it measures: they tell
// that something has gone wrong.
func small() []Floor {
	s, mode := Shape{1000, 5}, "iptables-nft"
	return []Floor{
		{Shape: s, Mode: mode, Figure: "cold.all", Ratio: 2},
		{Shape: s, Mode: mode, Figure: "cold.kubernetes", Most: 2},
		{Shape: s, Mode: mode, Figure: "cold.dns", Most: 2},
		{Shape: s, Mode: mode, Figure: "objects.rules", Ratio: 2},
		{Shape: s, Mode: mode, Figure: "endpoint.p99", Ratio: 3},
		{Shape: s, Mode: mode, Figure: "endpoint.cpu", Ratio: 8},
		{Shape: s, Mode: mode, Figure: "rss.settled", Ratio: 1.2},
		{Shape: s, Mode: mode, Figure: "restart.rules"},
		{Shape: s, Mode: mode, Figure: "restart.broken"},
		{Shape: s, Mode: mode, Figure: "restart.refused"},
		{Shape: s, Mode: mode, Figure: "audit.time", Most: 2},
	}
}

// Floors are what is promised at 10,000 Services of five endpoints, and what must
// be so with 1,000.
func Floors() []Floor {
	s := Shape{10000, 5}
	return slices.Concat(
		small(),
		settingFloors{"iptables-nft", 30, 20, 20, 2, 5, 2}.at(s),
		settingFloors{"iptables-legacy", 2, 4, 4, 2, 5, 2}.at(s),
		settingFloors{"ipvs", 5, 10, 10, 2, 1, 2}.at(s),
	)
}

// Verdict is what became of one floor.
type Verdict struct {
	Floor    Floor
	Value    float64
	Measured bool
	Kept     bool
}

func (v Verdict) String() string {
	what := fmt.Sprintf("%s %s: %s", v.Floor.Shape, v.Floor.Mode, v.Floor.Figure)
	if v.Floor.Over != "" {
		what += " over " + v.Floor.Over
	}
	if !v.Measured {
		return what + " was not measured"
	}
	wish := fmt.Sprintf("at most %g", v.Floor.Most)
	if v.Floor.Ratio > 0 {
		wish = fmt.Sprintf("a ratio of %g or more", v.Floor.Ratio)
	}
	if v.Kept {
		return fmt.Sprintf("%s is %s, as wanted: %s", what, number(v.Value, true), wish)
	}
	return fmt.Sprintf("%s is %s, wanted: %s", what, number(v.Value, true), wish)
}

// Judge compares with the floors of the shapes and modes that were measured.
func (r *Results) Judge(floors []Floor) []Verdict {
	var verdicts []Verdict
	for _, f := range floors {
		if !slices.Contains(r.Shapes(), f.Shape) || !slices.Contains(r.Modes(), f.Mode) {
			continue
		}
		v := Verdict{Floor: f}
		if f.Ratio > 0 {
			v.Value, v.Measured = r.Ratio(f.Shape, f.Mode, measure.Figure{Name: f.Figure})
			v.Kept = v.Measured && v.Value >= f.Ratio
		} else {
			v.Value, v.Measured = r.Value(f.Shape, f.Mode, proxy.Portway, f.Figure)
			if f.Over != "" {
				over, ok := r.Value(f.Shape, f.Mode, proxy.Portway, f.Over)
				v.Measured = v.Measured && ok && over > 0
				v.Value /= over
			}
			v.Kept = v.Measured && v.Value <= f.Most
		}
		verdicts = append(verdicts, v)
	}
	return verdicts
}
