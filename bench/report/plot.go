package report

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"zamok/bench/measure"
)

// The plots are SVG by hand: axes, lines, names. Their colours read on white and on black.
const (
	plotWide, plotHigh = 790, 420
	plotLeft, plotTop  = 70, 20
	plotNames          = 220 // on the right
	plotBottom         = 45
)

type plotLine struct {
	name   string
	colour string
	x, y   []float64
}

// colour belongs to a system whatever is plotted with it.
func colour(system string) string {
	for _, c := range [][2]string{{"zamok", "#d62728"}, {"zamok-wal", "#ff7f0e"}, {"etcd", "#1f77b4"}, {"zookeeper", "#2ca02c"},
		{"redis-aof", "#9467bd"}, {"redis-mem", "#c39bd3"}, {"postgres", "#17becf"}, {"retry", "#8c564b"}, {"queue", "#bcbd22"}, {"setnx", "#e377c2"}} {
		if c[0] == system {
			return c[1]
		}
	}
	return "#7f7f7f"
}

func (r *report) plots() map[string]string {
	drawn := map[string]string{}
	for workload, across := range map[string]string{"own": "clients, a key each", "one": "clients that want one key"} {
		var lines []plotLine
		for _, s := range r.systems {
			l := plotLine{name: s.Title, colour: colour(s.Name)}
			for _, n := range r.rs.Clients(workload) {
				if rate := r.rs.Summary(s.Name, workload, n, "rate"); rate.Median > 0 {
					l.x, l.y = append(l.x, float64(n)), append(l.y, rate.Median)
				}
			}
			lines = append(lines, l)
		}
		drawn[workload+".svg"] = lineplot(across, "cycles/s", lines, math.Log10)
	}
	var waits []plotLine
	for _, s := range r.systems {
		l := plotLine{name: s.Title, colour: colour(s.Name)}
		for i := 0; ; i++ {
			wait := r.rs.Summary(s.Name, "wait", 0, fmt.Sprintf("wait_%02d", i))
			if wait.N == 0 {
				break
			}
			l.x, l.y = append(l.x, float64(i+1)), append(l.y, max(wait.Median, 0.1))
		}
		waits = append(waits, l)
	}
	drawn["wait.svg"] = lineplot("threads, by how long they waited", "ms", waits, math.Log10)
	drawn["timeline.svg"] = r.timelines()
	return drawn
}

// lineplot draws lines; y, and x where it spans more than 50, by logarithm.
func lineplot(across, up string, lines []plotLine, scale func(float64) float64) string {
	lines = slices.DeleteFunc(slices.Clone(lines), func(l plotLine) bool { return len(l.x) == 0 })
	if len(lines) == 0 {
		return svg(plotWide, plotHigh, "")
	}
	var xs, ys []float64
	for _, l := range lines {
		xs, ys = append(xs, l.x...), append(ys, l.y...)
	}
	xScale := func(v float64) float64 { return v }
	if slices.Max(xs) > 50 {
		xScale = scale
	}
	width, height := float64(plotWide-plotLeft-plotNames), float64(plotHigh-plotTop-plotBottom)
	place := func(v float64, scale func(float64) float64, all []float64) float64 {
		low, high := scale(slices.Min(all)), scale(slices.Max(all))
		if high == low {
			return 0.5
		}
		return (scale(v) - low) / (high - low)
	}
	x := func(v float64) float64 { return plotLeft + width*place(v, xScale, xs) }
	y := func(v float64) float64 { return plotTop + height*(1-place(v, scale, ys)) }
	var b strings.Builder
	for _, v := range powersOfTen(slices.Min(ys), slices.Max(ys)) {
		fmt.Fprintf(&b, `<line x1="%d" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#8884"/>`, plotLeft, y(v), plotLeft+width, y(v))
		svgText(&b, plotLeft-8, y(v)+4, "end", "#777", formatNumber(v))
	}
	for _, v := range slices.Compact(slices.Sorted(slices.Values(lines[mostPoints(lines)].x))) {
		if xScale(10) == 1 || math.Mod(v, 8) == 0 {
			svgText(&b, x(v), plotTop+height+18, "middle", "#777", formatNumber(v))
		}
	}
	svgText(&b, plotLeft+width/2, plotHigh-6, "middle", "#777", across)
	svgText(&b, plotLeft-8, plotTop-6, "end", "#777", up)
	for i, l := range lines {
		var points []string
		for j := range l.x {
			points = append(points, fmt.Sprintf("%.1f,%.1f", x(l.x[j]), y(l.y[j])))
			fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="2.5" fill="%s"/>`, x(l.x[j]), y(l.y[j]), l.colour)
		}
		fmt.Fprintf(&b, `<polyline fill="none" stroke="%s" stroke-width="2" points="%s"/>`, l.colour, strings.Join(points, " "))
		svgText(&b, plotLeft+width+16, float64(plotTop+12+i*18), "start", l.colour, l.name)
		b.WriteByte('\n')
	}
	return svg(plotWide, plotHigh, b.String())
}

func mostPoints(lines []plotLine) int {
	found := 0
	for i, l := range lines {
		if len(l.x) > len(lines[found].x) {
			found = i
		}
	}
	return found
}

// powersOfTen are the powers of ten between two values.
func powersOfTen(low, high float64) []float64 {
	var found []float64
	for p := math.Ceil(math.Log10(low)); p <= math.Floor(math.Log10(high)); p++ {
		found = append(found, math.Pow(10, p))
	}
	return found
}

const (
	laneHigh = 8
	laneMax  = 1000. // milliseconds that are shown
)

// timelines draws who held the lock when, a block a system and a lane a thread, from the first round.
func (r *report) timelines() string {
	var b strings.Builder
	top := float64(plotTop)
	width := float64(plotWide - plotLeft - plotNames + plotLeft - 10)
	lanes := 0 // as many for all, also where most threads never had a turn
	for _, rec := range r.rs.Records {
		for _, span := range rec.Spans {
			lanes = max(lanes, span.Thread+1)
		}
	}
	for _, s := range r.systems {
		spans := r.spans(s.Name)
		if len(spans) == 0 {
			continue
		}
		for _, span := range spans {
			if span.From < laneMax {
				fmt.Fprintf(&b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%d" fill="%s"/>`, 10+width*span.From/laneMax,
					top+float64(span.Thread*laneHigh), max(0.5, width*(min(span.To, laneMax)-span.From)/laneMax), laneHigh-1, colour(s.Name))
			}
		}
		high := float64(lanes * laneHigh)
		fmt.Fprintf(&b, `<rect x="10" y="%.1f" width="%.1f" height="%.1f" fill="none" stroke="#8886"/>`, top, width, high)
		svgText(&b, 10+width+12, top+high/2, "start", colour(s.Name), s.Title)
		b.WriteByte('\n')
		top += high + 12
	}
	svgText(&b, 10, top+8, "start", "#777", "the first second; a lane a thread")
	return svg(plotWide, int(top)+20, b.String())
}

func (r *report) spans(system string) []measure.Span {
	for _, rec := range r.rs.Records {
		if rec.System == system && len(rec.Spans) > 0 {
			return rec.Spans
		}
	}
	return nil
}

func svgText(b *strings.Builder, x, y float64, anchor, colour, words string) {
	words = strings.NewReplacer("&", "&amp;", "<", "&lt;").Replace(words)
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s">%s</text>`, x, y, anchor, colour, words)
}

func svg(wide, high int, body string) string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="sans-serif" font-size="12">`+
		"\n%s\n</svg>\n", wide, high, wide, high, body)
}
