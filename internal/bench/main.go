// Command bench runs our plugins and the reference's side by side and prints what ADD, CHECK and DEL took,
// as whole processes. Both sides are driven by the same code in turn, each in a throw-away host of its
// own.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

type options struct {
	plugins, reference  string
	floor               string // the directory of the floor; empty: without
	rounds              int
	attachments, leases []int
	burst               int
	parallel            []int
	mappings            []int
	collect, commanded  int
	stream              time.Duration
	only, rows          string
	virtual, newest     bool
}

func main() {
	var o options
	var worker, asJSON bool
	var md, from, attachments, leases, parallel, mappings string
	flag.StringVar(&o.plugins, "plugins", "bin/cni", "our plugins")
	flag.StringVar(&o.reference, "reference", "/usr/lib/cni", "the reference's plugins")
	flag.StringVar(&o.floor, "floor", "bin/floor",
		"the directory of the program that does the least; empty: without it")
	flag.IntVar(&o.rounds, "rounds", 25, "containers to measure for each line")
	flag.StringVar(&attachments, "attachments", "0,100,1000", "how many other containers are attached, as a list")
	flag.StringVar(&leases, "leases", "0,60000", "how many other leases there are, as a list")
	flag.IntVar(&o.burst, "burst", 200, "containers that are attached and detached as fast as it goes")
	flag.StringVar(&parallel, "parallel", "1,4,16", "how many of them at a time, as a list")
	flag.StringVar(&mappings, "mappings", "10,1000,10000", "published ports on the data path, as a list")
	flag.IntVar(&o.collect, "gc", 500, "attachments that GC removes")
	flag.IntVar(&o.commanded, "commanded", 1000, "attachments that the row commands looks at")
	flag.DurationVar(&o.stream, "stream", 2*time.Second, "how long a stream through a published port lasts")
	flag.StringVar(&o.rows, "rows", "start,verbs,bursts,gc,path,commands", "what to measure")
	flag.StringVar(&o.only, "only", "", "only the cases with this in their name")
	flag.BoolVar(&o.virtual, "virtual", false,
		"the cases that few kernels have, and no others: for the virtual machine")
	flag.BoolVar(&o.newest, "newest", false,
		"the reference has nf_tables as backend: measure this, too, and write a section of its own")
	flag.BoolVar(&asJSON, "json", false, "print JSON")
	flag.StringVar(&from, "from", "", "measure nothing: take what -json has printed from this file")
	flag.StringVar(&md, "md", "",
		"also write a page of Markdown to this file; what it has of the virtual machine, or of here, stays")
	flag.BoolVar(&worker, "worker", false, "be one side's host (bench starts these itself)")
	flag.Parse()

	var err error
	if worker {
		if err = nstest.Enter(); err == nil {
			err = os.WriteFile("/etc/cni/fairlead.json", []byte(`{"debugCommands": true}`), 0o644) // debug writes to /run
		}
		if err == nil {
			err = work(os.Stdin, os.Stdout)
		}
	} else {
		for _, l := range []struct {
			text string
			to   *[]int
		}{{attachments, &o.attachments}, {leases, &o.leases}, {parallel, &o.parallel}, {mappings, &o.mappings}} {
			if *l.to, err = numbers(l.text); err != nil {
				break
			}
		}
		if err == nil {
			err = run(o, asJSON, from, md)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func numbers(list string) (ns []int, err error) {
	for _, s := range strings.Split(list, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("%q is not a list of numbers", list)
		}
		ns = append(ns, n)
	}
	return ns, nil
}

func run(o options, asJSON bool, from, md string) (err error) {
	var rep report
	if from != "" {
		rep, err = read(from)
	} else {
		rep, err = measureAll(o)
	}
	if err != nil {
		return err
	}
	if md != "" {
		if err := writePage(md, rep); err != nil {
			return err
		}
	}
	if asJSON {
		enc := json.NewEncoder(os.Stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(rep)
	}
	_, err = os.Stdout.Write(rep.text())
	return err
}

// wants reports whether a row is to be measured.
func (o options) wants(row string) bool { return slices.Contains(strings.Split(o.rows, ","), row) }

func measureAll(o options) (rep report, err error) {
	rep.Machine = machineFacts(o)
	if !o.virtual && o.wants("start") {
		if rep.Start, err = startUp(o); err != nil {
			return rep, err
		}
	}
	for _, c := range cases() {
		if !strings.Contains(c.Name, o.only) || c.Virtual != o.virtual ||
			c.Newer && !o.newest {
			continue
		}
		if o.wants("verbs") {
			lines, err := measure(o, c, c.loads(o))
			if err != nil {
				return rep, fmt.Errorf("%s: %w", c.Name, err)
			}
			rep.Lines = append(rep.Lines, lines...)
		}
		if c.Burst && o.wants("bursts") {
			lines, err := measureBursts(o, c)
			if err != nil {
				return rep, fmt.Errorf("%s, %d containers: %w", c.Name, o.burst, err)
			}
			rep.Bursts = append(rep.Bursts, lines...)
		}
		if c.Chained && o.wants("gc") {
			l, err := measureGC(o, c, o.collect)
			if err != nil {
				return rep, err
			}
			rep.GC = append(rep.GC, l)
		}
	}
	if !o.virtual && o.wants("commands") {
		if rep.Commands, err = measureCommands(o, benchCase{Name: wholeChain}); err != nil {
			return rep, err
		}
	}
	if !o.virtual && o.wants("path") {
		if rep.Paths, err = measurePaths(o); err != nil {
			return rep, err
		}
	}
	rep.Machine.LoadAfter = loadAverage()
	return rep, nil
}

// read takes what -json has printed. Lines may stand before it: the virtual machine has one console for all that a
// program says.
func read(path string) (rep report, err error) {
	b, err := os.ReadFile(path)
	if err == nil {
		_, after, found := bytes.Cut(append([]byte("\n"), b...), []byte("\n{"))
		if !found {
			return rep, fmt.Errorf("what was measured: %s: no line begins with {", path)
		}
		err = json.Unmarshal(append([]byte("{"), after...), &rep)
	}
	if err != nil {
		return rep, fmt.Errorf("what was measured: %s: %w", path, err)
	}
	return rep, nil
}
