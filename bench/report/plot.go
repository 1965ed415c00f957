package report

import (
	"bytes"
	"cmp"
	"fmt"
	"image/color"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"zamok/bench/measure"
)

const (
	plotWidth, plotHeight = 8 * vg.Inch, 4.5 * vg.Inch
	plotMargin            = vg.Inch / 8
	legendWidth           = 2.2 * vg.Inch // beside the drawing
	laneHeight            = vg.Length(6)  // of one thread of a timeline
	lanes                 = 10.           // threads of a timeline
	timelineMax           = 1000.         // milliseconds that are shown
)

// colour gives a system the same colour in every plot.
func colour(system string) color.Color {
	colours := map[string]uint32{
		"zamok": 0xd62728, "etcd": 0x1f77b4, "zookeeper": 0x2ca02c, "redis-aof": 0x9467bd,
		"redis-mem": 0xc39bd3, "postgres": 0x17becf, "retry": 0x8c564b, "queue": 0xbcbd22,
		"setnx": 0xe377c2,
	}
	rgb := cmp.Or(colours[system], 0x7f7f7f)
	return color.RGBA{R: uint8(rgb >> 16), G: uint8(rgb >> 8), B: uint8(rgb), A: 255}
}

// plots draws every plot, by the name of its file beside the document.
func (r *report) plots() (drawn map[string][]byte, err error) {
	drawn = map[string][]byte{}
	for _, p := range []struct {
		file, x, y string
		points     func(system string) plotter.XYs
		logX       bool
	}{
		{"benchmarks/own.svg", "clients, one key each", "cycles/s", r.ratesByClients("own"), true},
		{"benchmarks/one.svg", "clients that want one key", "cycles/s",
			r.ratesByClients("one"), true},
		{"benchmarks/wait.svg", "threads, ordered by their wait", "ms", r.sortedWaits, false},
	} {
		chart := plot.New()
		chart.X.Label.Text, chart.Y.Label.Text = p.x, p.y
		chart.Legend.Top, chart.Legend.Left, chart.Legend.XOffs = true, true,
			plotWidth-legendWidth-vg.Inch
		for _, s := range r.systems {
			points := p.points(s.Name)
			if len(points) == 0 {
				continue
			}
			line, dots, err := plotter.NewLinePoints(points)
			if err != nil {
				return nil, err
			}
			line.Color, dots.Color = colour(s.Name), colour(s.Name)
			chart.Add(line, dots)
			chart.Legend.Add(s.Title, line)
			chart.Y.Scale, chart.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
			if p.logX {
				chart.X.Scale, chart.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
			}
		}
		if drawn[p.file], err = svg(chart, plotHeight, -legendWidth); err != nil {
			return nil, err
		}
	}
	drawn["benchmarks/timeline.svg"], err = r.timeline()
	return drawn, err
}

func svg(p *plot.Plot, height, right vg.Length) ([]byte, error) {
	canvas := vgsvg.New(plotWidth, height)
	p.Draw(draw.Crop(draw.New(canvas), plotMargin, right-plotMargin, plotMargin, -plotMargin))
	var out bytes.Buffer
	_, err := canvas.WriteTo(&out)
	return out.Bytes(), err
}

func (r *report) ratesByClients(workload string) func(system string) plotter.XYs {
	return func(system string) (points plotter.XYs) {
		for _, n := range r.rs.Clients(workload) {
			if rate := r.rs.Summary(system, workload, n, "rate"); rate.Median > 0 {
				points = append(points, plotter.XY{X: float64(n), Y: rate.Median})
			}
		}
		return points
	}
}

func (r *report) sortedWaits(system string) (points plotter.XYs) {
	for i := 0; ; i++ {
		wait := r.rs.Summary(system, "wait", 0, fmt.Sprintf("wait_%02d", i))
		if wait.N == 0 {
			return points
		}
		points = append(points, plotter.XY{X: float64(i + 1), Y: max(wait.Median, 0.1)})
	}
}

// timeline draws which thread held the lock when: a block for each system and a lane for each
// thread.
func (r *report) timeline() ([]byte, error) {
	chart := plot.New()
	chart.X.Label.Text, chart.X.Min, chart.X.Max = "ms; one lane for each thread", 0, timelineMax
	var ticks plot.ConstantTicks
	row := 0.
	for _, s := range r.systems {
		i := slices.IndexFunc(r.rs.Records,
			func(rec measure.Record) bool { return rec.System == s.Name && len(rec.Spans) > 0 })
		if i < 0 {
			continue
		}
		ticks = append(ticks, plot.Tick{Value: row - lanes/2, Label: s.Title})
		for _, span := range r.rs.Records[i].Spans {
			if span.From > timelineMax {
				continue
			}
			y := row - float64(span.Thread)
			line, err := plotter.NewLine(
				plotter.XYs{{X: span.From, Y: y}, {X: min(span.To, timelineMax), Y: y}})
			if err != nil {
				return nil, err
			}
			line.Color, line.Width = colour(s.Name), laneHeight-1
			chart.Add(line)
		}
		row -= lanes + 1
	}
	chart.Y.Tick.Marker, chart.Y.Min, chart.Y.Max = ticks, row, 0
	return svg(chart, vg.Inch-vg.Length(row)*laneHeight, 0)
}
