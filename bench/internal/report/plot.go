package report

import (
	"fmt"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"

	"github.com/portway/portway/bench/internal/measure"
	"github.com/portway/portway/bench/internal/proxy"
)

// plotted are the figures that are drawn over the number of Services.
func plotted() []string {
	return []string{"cold.all", "endpoint.p50", "endpoint.cpu", "rss.settled", "packet.last", "churn.p99"}
}

// Plot draws SVG files into a directory, one for each figure, over the number of
// Services: those shapes with as many endpoints as the first has, if they are more
// than one.
func (r *Results) Plot(dir string) error {
	shapes := r.Shapes()
	if len(shapes) == 0 {
		return nil
	}
	endpoints := shapes[0].Endpoints
	shapes = slices.DeleteFunc(shapes, func(s Shape) bool { return s.Endpoints != endpoints })
	if len(shapes) < 2 {
		return nil
	}
	for _, f := range measure.Catalog() {
		if !slices.Contains(plotted(), f.Name) {
			continue
		}
		if err := r.plot(f, shapes, filepath.Join(dir, f.Name+".svg")); err != nil {
			return fmt.Errorf("plot %s: %w", f.Name, err)
		}
	}
	return nil
}

func (r *Results) plot(f measure.Figure, shapes []Shape, file string) error {
	p := plot.New()
	p.Title.Text = f.Title
	p.X.Label.Text = fmt.Sprintf("Services, %d endpoints each", shapes[0].Endpoints)
	p.Y.Label.Text = f.Unit
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.LogTicks{Prec: -1}, plot.LogTicks{Prec: -1}
	p.Legend.Top, p.Legend.Left = true, true
	drawn := false
	for i, mode := range r.Modes() {
		for j, name := range []string{proxy.Portway, proxy.KubeProxy} {
			points := r.points(f, shapes, mode, name)
			if len(points) == 0 {
				continue
			}
			line, marks, err := plotter.NewLinePoints(points)
			if err != nil {
				return err
			}
			line.Color, marks.Color = plotutil.Color(i), plotutil.Color(i)
			line.Dashes, marks.Shape = plotutil.Dashes(j), plotutil.Shape(j)
			p.Add(line, marks)
			p.Legend.Add(name+", "+mode, line, marks)
			drawn = true
		}
	}
	if !drawn {
		return nil
	}
	return p.Save(7*vg.Inch, 4.5*vg.Inch, file)
}

// points leaves out what a logarithmic axis cannot show.
func (r *Results) points(f measure.Figure, shapes []Shape, mode, name string) plotter.XYs {
	var points plotter.XYs
	for _, s := range shapes {
		if v, ok := r.Value(s, mode, name, f.Name); ok && v > 0 {
			points = append(points, plotter.XY{X: float64(s.Services), Y: v})
		}
	}
	return points
}
