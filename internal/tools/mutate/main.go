// Command mutate changes a program in small ways, one at a time, and tells which changes no test notices. A sample of all
// changes is tried: conditions negated, statements dropped, < for <=, && for ||, nil for an error, numbers off by one,
// calls made at once instead of deferred. The tree does not change: the compiler reads the mutant from an overlay.
package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// jailFailed is the exit status of a jail whose tests did not run.
const jailFailed = 99

func main() {
	if len(os.Args) > 3 && os.Args[1] == jailed {
		status, err := inJail(os.Args[2], os.Args[3], os.Args[4:])
		if err != nil {
			fmt.Fprintln(os.Stderr, "mutate:", err)
			status = jailFailed
		}
		os.Exit(status)
	}

	var s sampling
	flag.StringVar(&s.root, "root", ".", "directory of the packages")
	flag.StringVar(&s.accepted, "accepted", "", "file with the mutants that may survive, and why")
	flag.StringVar(&s.only, "only", "", "try only mutants whose name has this text, such as \"order.go NoHost\"")
	flag.IntVar(&s.mutants, "n", 100, "number of mutants")
	flag.Uint64Var(&s.seed, "seed", 1, "where the sample begins")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: mutate [flags] PACKAGE[=TESTS,TESTS]...\n\nPackages are directories below the root. "+
			"By default a package's own tests have to notice.")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	for _, text := range flag.Args() {
		s.targets = append(s.targets, parseTarget(text))
	}
	unnamed, err := s.run(func(format string, args ...any) { fmt.Printf(format+"\n", args...) })
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(2)
	case unnamed > 0:
		os.Exit(1)
	}
}

// A sampling tries a number of mutants, of all targets in turn. The seed alone decides which.
type sampling struct {
	root, accepted, only string
	mutants              int
	seed                 uint64
	targets              []*target
}

// run returns how many mutants survived that the file of accepted ones does not name.
func (s *sampling) run(say func(format string, args ...any)) (unnamed int, err error) {
	if s.root, err = filepath.Abs(s.root); err != nil {
		return 0, err
	}
	reasons, err := readAccepted(s.accepted)
	if err != nil {
		return 0, err
	}
	work, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(work)

	r := &runner{root: s.root, work: work}
	for i, t := range s.targets {
		if t.rest, err = mutantsOf(s.root, t.dir); err != nil {
			return 0, err
		}
		random := rand.New(rand.NewPCG(s.seed, uint64(i)))
		random.Shuffle(len(t.rest), func(a, b int) { t.rest[a], t.rest[b] = t.rest[b], t.rest[a] })
		t.rest = slices.DeleteFunc(t.rest, func(m *mutant) bool { return !strings.Contains(m.String(), s.only) })
		if err := r.measure(t); err != nil {
			return 0, err
		}
		say("%s: %d mutants; the tests take %.1f s", t.dir, len(t.rest), t.took.Seconds())
	}

	count := map[verdict]int{}
	named := 0
	for tried := 0; tried < s.mutants; {
		t := s.next()
		if t == nil {
			break
		}
		m := t.rest[0]
		t.rest = t.rest[1:]
		found, err := r.try(t, m)
		if err != nil {
			return unnamed, err
		}
		if found == uncompiled {
			continue
		}
		s.targets = append(slices.DeleteFunc(s.targets, func(other *target) bool { return other == t }), t)
		tried++
		count[found]++
		say("%-8s %s/%s:%d %s\n\t- %s\n\t+ %s", found, m.dir, m.file, m.line, m.function, m.old, m.new)
		reason, known := reasons[m.String()]
		switch {
		case found == survived && known:
			named++
			say("\taccepted: %s", reason)
		case found == survived:
			unnamed++
		}
	}
	died := count[killed] + count[overtime]
	say("%d of %d mutants died (%d by the bound on time); %d survivors are accepted, %d are not", died,
		died+count[survived], count[overtime], named, unnamed)
	return unnamed, nil
}

// next is the target whose turn it is: the first that has mutants left.
func (s *sampling) next() *target {
	for _, t := range s.targets {
		if len(t.rest) > 0 {
			return t
		}
	}
	return nil
}
