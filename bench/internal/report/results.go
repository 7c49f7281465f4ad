package report

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/portway/portway/bench/internal/measure"
	"github.com/portway/portway/bench/internal/proxy"
)

// Shape is how many Services there are, with how many endpoints each.
type Shape struct {
	Services  int `json:"services"`
	Endpoints int `json:"endpoints"`
}

func (s Shape) String() string { return fmt.Sprintf("%dx%d", s.Services, s.Endpoints) }

// Run is one proxy, measured once.
type Run struct {
	Shape      Shape           `json:"shape"`
	Mode       string          `json:"mode"`
	Proxy      string          `json:"proxy"`
	Repetition int             `json:"repetition"`
	Figures    measure.Figures `json:"figures"`
	// Failed says what could not be measured.
	Failed string `json:"failed,omitempty"`
}

// Results are all runs of one call.
type Results struct {
	Started time.Time `json:"started"`
	Machine string    `json:"machine"`
	Command string    `json:"command"`
	Runs    []Run     `json:"runs"`
}

// Write writes them to a file.
func (r *Results) Write(path string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}

// Read reads what Write has written.
func Read(path string) (*Results, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := new(Results)
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// Shapes are those that were measured, in their order.
func (r *Results) Shapes() []Shape {
	var shapes []Shape
	for _, run := range r.Runs {
		if !slices.Contains(shapes, run.Shape) {
			shapes = append(shapes, run.Shape)
		}
	}
	return shapes
}

// Modes are those that were measured, in their order.
func (r *Results) Modes() []string {
	var modes []string
	for _, run := range r.Runs {
		if !slices.Contains(modes, run.Mode) {
			modes = append(modes, run.Mode)
		}
	}
	return modes
}

// Value is the median over the repetitions of one figure of one proxy.
func (r *Results) Value(s Shape, mode, name, figure string) (value float64, ok bool) {
	var values []float64
	for _, run := range r.Runs {
		if v, ok := run.Figures[figure]; ok && run.Shape == s && run.Mode == mode && run.Proxy == name {
			values = append(values, v)
		}
	}
	if len(values) == 0 {
		return 0, false
	}
	slices.Sort(values)
	return (values[(len(values)-1)/2] + values[len(values)/2]) / 2, true
}

// Ratio is how many times better Portway is than kube-proxy in one figure.
func (r *Results) Ratio(s Shape, mode string, f measure.Figure) (ratio float64, ok bool) {
	ours, ok1 := r.Value(s, mode, proxy.Portway, f.Name)
	theirs, ok2 := r.Value(s, mode, proxy.KubeProxy, f.Name)
	if !ok1 || !ok2 || f.Alone {
		return 0, false
	}
	if f.Higher {
		ours, theirs = theirs, ours
	}
	if ours <= 0 {
		return 0, false
	}
	return theirs / ours, true
}
