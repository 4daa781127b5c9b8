package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// A curve is a side in a plot: a value at each place of the horizontal axis, 0 where there is none.
type curve struct {
	name   string
	values []float64
}

// colour is that of a side in every plot. They differ in light as well, for who does not see colours.
func colour(name string) string {
	return map[string]string{ours: "#1f6feb", chained: "#0b3d91", reference: "#d1580b", floored: "#6e7781"}[name]
}

// label is what readers of a plot call a side.
func label(name string) string {
	switch name {
	case ours:
		return "Fairlead"
	case chained:
		return "Fairlead, one process"
	case floored:
		return "minimum of the kernel"
	}
	return name
}

// dark are the colours on a dark ground.
const dark = `<style>@media (prefers-color-scheme: dark){svg{fill:#dfe6ee}svg>rect{fill:#14191f}` +
	`[stroke="#d0d7de"]{stroke:#313c48}[fill="#0b3d91"]{fill:#9ec1ff}[stroke="#0b3d91"]{stroke:#9ec1ff}}</style>`

const (
	plotWidth, plotHeight = 720.0, 360.0
	left, right           = 70.0, 190.0 // margins; the names stand at the right
	top, bottom           = 40.0, 50.0
)

// plot draws curves with a logarithmic vertical axis, and places that are far from each other side by side.
func plot(title, horizontal, vertical string, places []string, curves []curve) string {
	low, high := math.Inf(1), 0.0
	for _, c := range curves {
		for _, v := range c.values {
			if v > 0 {
				low, high = min(low, v), max(high, v)
			}
		}
	}
	low, high = low/1.3, high*1.3
	x := func(i int) float64 {
		return left + (plotWidth-left-right)*(float64(i)+0.5)/float64(len(places))
	}
	y := func(v float64) float64 {
		return plotHeight - bottom - (plotHeight-top-bottom)*math.Log(v/low)/math.Log(high/low)
	}
	var b strings.Builder
	text := func(x, y float64, anchor, more, s string) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="%s"%s>%s</text>`+"\n", x, y, anchor, more, s)
	}
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]g %[2]g" width="%[1]g" height="%[2]g" `+
		`font-family="sans-serif" font-size="12" fill="#1f2328">`+"\n", plotWidth, plotHeight)
	fmt.Fprintf(&b, "<title>%s</title>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n", title)
	b.WriteString(dark + "\n")
	text(left, 22, "start", ` font-size="15"`, title)
	for _, v := range ticks(low, high) {
		fmt.Fprintf(&b, `<path d="M%g %.1fH%g" stroke="#d0d7de"/>`+"\n", left, y(v), plotWidth-right)
		text(left-8, y(v)+4, "end", "", fmt.Sprintf("%g", v))
	}
	for i, p := range places {
		text(x(i), plotHeight-bottom+18, "middle", "", p)
	}
	text((left+plotWidth-right)/2, plotHeight-12, "middle", "", horizontal)
	text(0, 0, "middle", fmt.Sprintf(` transform="translate(18 %g) rotate(-90)"`, (top+plotHeight-bottom)/2), vertical)
	for _, c := range curves {
		draw(&b, c, x, y)
	}
	for i, at := range beside(curves, y) {
		text(plotWidth-right+8, at+4, "start", fmt.Sprintf(` fill="%s"`, colour(curves[i].name)), label(curves[i].name))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func draw(b *strings.Builder, c curve, x func(int) float64, y func(float64) float64) {
	path := ""
	for i, v := range c.values {
		if v <= 0 {
			continue
		}
		path += fmt.Sprintf(" %.1f,%.1f", x(i), y(v))
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3.5" fill="%s"><title>%s: %.3g</title></circle>`+"\n",
			x(i), y(v), colour(c.name), label(c.name), v)
	}
	fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n",
		strings.TrimSpace(path), colour(c.name))
}

// ticks are the values 1, 2 and 5 of each power of ten between two.
func ticks(low, high float64) (all []float64) {
	for power := math.Pow(10, math.Floor(math.Log10(low))); power <= high; power *= 10 {
		for _, m := range []float64{1, 2, 5} {
			if v := m * power; v >= low && v <= high {
				all = append(all, v)
			}
		}
	}
	return all
}

// beside is the height of each curve's name: that of its last value, but far enough from the next one's.
func beside(curves []curve, y func(float64) float64) []float64 {
	heights, order := make([]float64, len(curves)), make([]int, len(curves))
	for i, c := range curves {
		order[i] = i
		for _, v := range c.values {
			if v > 0 {
				heights[i] = y(v)
			}
		}
	}
	slices.SortFunc(order, func(a, b int) int { return int(heights[a] - heights[b]) })
	for i := 1; i < len(order); i++ {
		heights[order[i]] = max(heights[order[i]], heights[order[i-1]]+16)
	}
	return heights
}

// plots are the files that the page shows, by name.
func (r report) plots() map[string]string {
	all := map[string]string{}
	adds, bursts := map[string][]float64{}, map[string][]float64{}
	var present, parallel []string
	for _, l := range r.Lines {
		if l.Case == wholeChain && l.Verb == "ADD" {
			present = append(present, fmt.Sprint(l.Present.Count))
			for name, s := range l.By {
				adds[name] = append(adds[name], float64(s.Median)/1e6)
			}
		}
	}
	for _, l := range r.Bursts {
		if l.Case == wholeChain {
			parallel = append(parallel, fmt.Sprint(l.Burst.Parallel))
			for name, rush := range l.By {
				bursts[name] = append(bursts[name], l.rate(rush.Add))
			}
		}
	}
	curves := func(by map[string][]float64) (all []curve) {
		for _, name := range inOrder(keys(by)) {
			all = append(all, curve{name, by[name]})
		}
		return all
	}
	if len(present) > 1 {
		all["performance-add.svg"] = plot("ADD of bridge, portmap, firewall and tuning",
			"attachments present", "milliseconds", present, curves(adds))
	}
	if len(parallel) > 1 {
		all["performance-bursts.svg"] = plot("Containers attached by bridge, portmap, firewall and tuning",
			"at a time", "containers a second", parallel, curves(bursts))
	}
	return all
}
