package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

// A fault is a bug that a programmer could make, and that histories have to find.
type fault struct {
	name, kind string
	edits      []edit
}

// plantAll plants each fault, and tells how long it took to find.
func plantAll(o options, only string) (missed int, err error) {
	for _, f := range faults() {
		if !strings.Contains(f.name, only) {
			continue
		}
		law, took, busy, count, err := o.plant(f)
		if err != nil {
			return missed, fmt.Errorf("%s: %w", f.name, err)
		}
		if law == "" {
			missed++
			law = "NOT FOUND"
		}
		fmt.Printf("| %s | %s | %s | %d | %.0f | %.0f |\n", f.name, f.kind, law, count.histories, took.Seconds(), busy.Seconds())
	}
	return missed, nil
}

// plant searches with one fault, up to the first failure: which law it broke, or "", how long that took, and for how long
// processors were busy.
func (o options) plant(f fault) (law string, took, busy time.Duration, c count, err error) {
	dir, err := os.MkdirTemp("", "histories")
	if err != nil {
		return "", 0, 0, c, err
	}
	defer os.RemoveAll(dir)
	program, err := build(o.root, dir, f.edits...)
	if err != nil {
		return "", 0, 0, c, err
	}
	switch { // some are of one chain
	case strings.Contains(f.name, "DHCP"):
		o.chains = "dhcp"
	case strings.Contains(f.name, "the grant"):
		o.chains = "cluster"
	}
	begin, before := time.Now(), processors()
	o.stop = 1
	o.passed = func() time.Duration { // as if nothing else kept the processors busy
		return (processors() - before) / time.Duration(runtime.NumCPU())
	}
	c, err = o.searchWith(program, func(s *script, broken failure) {
		if law == "" {
			law, took = broken.Law, time.Since(begin)
		}
		if o.out != "" {
			fmt.Println(broken)
			fmt.Println(s)
		}
	})
	return law, took, processors() - before, c, err
}
