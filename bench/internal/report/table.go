package report

import (
	"fmt"
	"io"
	"strconv"

	"github.com/portway/portway/bench/internal/measure"
	"github.com/portway/portway/bench/internal/proxy"
)

// WriteTables writes one table for each shape and mode, as Markdown.
func (r *Results) WriteTables(w io.Writer) error {
	for _, s := range r.Shapes() {
		for _, mode := range r.Modes() {
			if err := r.writeTable(w, s, mode); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *Results) writeTable(w io.Writer, s Shape, mode string) error {
	var rows []string
	for _, f := range measure.Catalog() {
		ours, ok1 := r.Value(s, mode, proxy.Portway, f.Name)
		theirs, ok2 := r.Value(s, mode, proxy.KubeProxy, f.Name)
		if !ok1 && !ok2 {
			continue
		}
		ratio := ""
		if x, ok := r.Ratio(s, mode, f); ok {
			ratio = number(x, true)
		}
		rows = append(rows, fmt.Sprintf("| %s | %s | %s | %s | %s |\n", f.Title, number(ours, ok1), number(theirs, ok2), f.Unit, ratio))
	}
	if len(rows) == 0 {
		return nil
	}
	_, err := fmt.Fprintf(w, "\n### %d Services × %d endpoints, %s\n\n| | Portway | kube-proxy | | ratio |\n|---|---:|---:|---|---:|\n", s.Services, s.Endpoints, mode)
	for _, row := range rows {
		if err == nil {
			_, err = io.WriteString(w, row)
		}
	}
	return err
}

// number has three digits that count.
func number(v float64, ok bool) string {
	switch {
	case !ok:
		return "–"
	case v >= 100 || v <= -100 || v == float64(int(v)):
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10 || v <= -10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case v >= 0.1 || v <= -0.1:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return strconv.FormatFloat(v, 'f', 4, 64)
}
