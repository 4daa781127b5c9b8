package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// built has our plugins, the floor and the command where `make bench` has them.
func built(t *testing.T) (o options) {
	t.Helper()
	dir := t.TempDir()
	o = options{plugins: dir + "/cni", reference: "/usr/lib/cni", floor: dir + "/floor"}
	for path, pkg := range map[string]string{"cni/bridge": "./cmd/cni", "floor/floor": "./internal/bench/floor",
		"fairlead": "./cmd/fairlead"} {
		path = filepath.Join(dir, path)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			err = os.Link(nstest.Build(t, "../..", pkg), path)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"host-local", "portmap", "firewall", "tuning", "chain"} {
		if err := os.Link(o.plugins+"/bridge", filepath.Join(o.plugins, name)); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

// Each row of the benchmark runs, small, with all sides, and shows in the text, on the page and in its plots. The
// reference's containers are enough to have their rules cloned.
func TestRows(t *testing.T) {
	nstest.NeedProgram(t, "ip", "nft", "iptables", "/usr/lib/cni/portmap")
	o := built(t)
	o.rows, o.only, o.rounds, o.commanded = "start,verbs,bursts,gc,path,commands", wholeChain, 1, 3
	o.attachments, o.burst, o.parallel = []int{0, cloneFrom + 4}, 3, []int{1, 2}
	o.collect, o.mappings, o.stream = 3, []int{10, 40}, 50*time.Millisecond
	rep, err := measureAll(o)
	if err != nil {
		t.Fatal(err)
	}
	if len(rep.Start) != 5 || len(rep.Lines) != 2*len(verbs()) || len(rep.Bursts) != 2 || len(rep.GC) != 1 ||
		len(rep.Paths) != 2 || len(rep.Commands) != len(commandsMeasured()) {
		t.Fatalf("rows: %+v", rep)
	}
	for _, l := range rep.Lines {
		for _, name := range o.sides(cases()[l.number(t)]) {
			if s := l.By[name]; s.Min <= 0 && (name != floored || l.Verb != "CHECK") {
				t.Errorf("%s at %s, %s: %+v", l.Verb, l.Present, name, s)
			}
		}
	}
	for _, l := range rep.Bursts {
		for name, r := range l.By {
			// The reference's plugins may fail each other: two of them make one chain of iptables at once. The page says so.
			if r.Failed > 0 && name != reference || r.Add <= 0 || r.Del <= 0 {
				t.Errorf("burst, %s: %+v", name, r)
			}
		}
	}
	for _, name := range []string{ours, chained, command, floored} {
		if c := rep.GC[0].By[name]; c.Time <= 0 || c.Memory <= 0 || rep.GC[0].Left[name] > 0 {
			t.Errorf("GC, %s: %+v, %d leases left", name, c, rep.GC[0].Left[name])
		}
	}
	for _, l := range rep.Commands {
		if l.Processor <= 0 {
			t.Errorf("%s: %v", l.Command, l.Processor)
		}
	}
	for _, l := range rep.Paths {
		for _, name := range []string{ours, pathIptables} {
			if c := l.By[name]; c.Connect <= 0 || c.RoundTrip <= 0 || c.Gigabits <= 0 {
				t.Errorf("%d mappings, %s: %+v", l.Mappings, name, c)
			}
		}
	}
	shown(t, rep)
}

// TestGCUntraced holds that the GC whose time counts is not traced, and that one that is traced tells its memory.
func TestGCUntraced(t *testing.T) {
	nstest.NeedProgram(t, "ip", "nft")
	o := built(t)
	c := benchCase{Name: wholeChain}
	for _, watch := range []bool{false, true} {
		a, err := o.collected(ours, c, 2, watch)
		if err != nil {
			t.Fatal(err)
		}
		if got := a.Took["GC"]; got.Time <= 0 || (got.Memory > 0) != watch {
			t.Errorf("watched %v: %+v", watch, got)
		}
	}
}

// number is the case of l.
func (l line) number(t *testing.T) int {
	t.Helper()
	n := benchCase{Name: l.Case}.number()
	if n < 0 {
		t.Fatalf("no case %s", l.Case)
	}
	return n
}

// shown holds that the page and the text have a report's rows, and that the plots are XML beside the page.
func shown(t *testing.T, rep report) {
	t.Helper()
	md := filepath.Join(t.TempDir(), "performance.md")
	if err := writePage(md, rep); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(md)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Many at once", "## GC", "The data path", "## Memory", "times the floor",
		"](performance-add.svg)", "](performance-bursts.svg)", chained + ", ms"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page has no %q:\n%s", want, page)
		}
	}
	if text := string(rep.text()); !strings.Contains(text, "Gbit/s") {
		t.Errorf("the text:\n%s", text)
	}
	for _, name := range []string{"performance-add.svg", "performance-bursts.svg"} {
		svg, err := os.ReadFile(filepath.Join(filepath.Dir(md), name))
		if err != nil {
			t.Fatal(err)
		}
		for d := xml.NewDecoder(strings.NewReader(string(svg))); err == nil; {
			_, err = d.Token()
		}
		if !errors.Is(err, io.EOF) || strings.Count(string(svg), "<polyline") != 4 || strings.Contains(string(svg), "NaN") {
			t.Errorf("%s: %v\n%s", name, err, svg)
		}
	}
}
