// Command bench runs our plugins and the reference's side by side and prints what ADD, CHECK and DEL took,
// as whole processes. Both sides are driven by the same code in turn, each in a throw-away host of its
// own.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

type options struct {
	plugins, reference  string
	rounds              int
	attachments, leases []int
	burst               int
	parallel            []int
	only                string
}

func main() {
	var o options
	var worker, asJSON bool
	var md, attachments, leases, parallel string
	flag.StringVar(&o.plugins, "plugins", "bin/cni", "our plugins")
	flag.StringVar(&o.reference, "reference", "/usr/lib/cni", "the reference's plugins")
	flag.IntVar(&o.rounds, "rounds", 25, "containers to measure for each line")
	flag.StringVar(&attachments, "attachments", "0,100,1000", "how many other containers are attached, as a list")
	flag.StringVar(&leases, "leases", "0,60000", "how many other leases there are, as a list")
	flag.IntVar(&o.burst, "burst", 200, "containers that are attached and detached as fast as it goes")
	flag.StringVar(&parallel, "parallel", "1,4,16", "how many of them at a time, as a list")
	flag.StringVar(&o.only, "only", "", "only the cases with this in their name")
	flag.BoolVar(&asJSON, "json", false, "print JSON")
	flag.StringVar(&md, "md", "", "also write a page of Markdown to this file")
	flag.BoolVar(&worker, "worker", false, "be one side's host (bench starts these itself)")
	flag.Parse()

	var err error
	if worker {
		if err = nstest.Enter(); err == nil {
			err = work(os.Stdin, os.Stdout)
		}
	} else {
		for _, l := range []struct {
			text string
			to   *[]int
		}{{attachments, &o.attachments}, {leases, &o.leases}, {parallel, &o.parallel}} {
			if *l.to, err = numbers(l.text); err != nil {
				break
			}
		}
		if err == nil {
			err = run(o, asJSON, md)
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

func run(o options, asJSON bool, md string) error {
	rep := report{Machine: machineFacts(o)}
	var err error
	if rep.Start, err = startUp(o); err != nil {
		return err
	}
	for number, c := range cases() {
		if !strings.Contains(c.Name, o.only) {
			continue
		}
		for _, present := range c.loads(o) {
			lines, err := measure(o, c, present)
			if err != nil {
				return fmt.Errorf("%s at %s: %w", c.Name, present, err)
			}
			rep.Lines = append(rep.Lines, lines...)
		}
		if !c.Burst {
			continue
		}
		lines, err := measureBursts(o, c, number)
		if err != nil {
			return fmt.Errorf("%s, %d containers: %w", c.Name, o.burst, err)
		}
		rep.Bursts = append(rep.Bursts, lines...)
	}
	rep.Machine.LoadAfter = loadAverage()
	if md != "" {
		if err := os.WriteFile(md, rep.markdown(), 0o644); err != nil {
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
