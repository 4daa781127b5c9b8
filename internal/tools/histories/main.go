// Command histories plays many orders of what can happen to a host at once: ADD, DEL, CHECK and GC beside each other, a
// repair, a flush of the packet filter, a link that an operator deletes, a full disk, a call that is killed, a reboot.
// Each system call that changes something is a step, and a seed decides whose turn it is. After each step laws are
// looked at. A history that breaks one is made short and written to a file, which -replay plays again.
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"golang.org/x/sys/unix"
)

// played is the first argument of this program where it plays one history, in a throw-away host.
const played = "play"

func main() {
	if len(os.Args) == 3 && os.Args[1] == played {
		os.Exit(inHost(os.Args[2]))
	}

	var o options
	planted := flag.Bool("planted", false, "plant each fault of the table, and tell which are found")
	only := flag.String("only", "", "of the planted faults, those whose name has this text")
	flag.StringVar(&o.root, "root", ".", "directory of the module")
	flag.StringVar(&o.out, "out", "", "directory for the scripts of histories that fail")
	flag.StringVar(&o.chains, "chains", "bridge,empty,cluster,chain,empty,macvlan,dhcp", "chains in turn, by comma")
	flag.StringVar(&o.program, "program", "", "a command fairlead, instead of that of the root; the program agent is beside it")
	flag.IntVar(&o.stop, "stop", 0, "stop after so many histories that fail; 0: no bound")
	flag.BoolVar(&o.long, "long", false, "print failures as they were played, and do not make them short")
	flag.Uint64Var(&o.seed, "seed", 1, "where the seeds begin")
	flag.IntVar(&o.number, "n", 0, "number of histories; 0: no bound")
	flag.DurationVar(&o.time, "time", time.Minute, "begin no history after this time; 0: no bound")
	flag.IntVar(&o.width, "parallel", 3*runtime.NumCPU(), "histories at a time")
	replay := flag.Bool("replay", false, "play the scripts whose files are the arguments")
	flag.Parse()

	failed, err := 0, error(nil)
	switch {
	case *planted:
		failed, err = plantAll(o, *only)
	case *replay:
		failed, err = o.replayAll(flag.Args())
	default:
		failed, err = o.search()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "histories:", err)
		os.Exit(2)
	}
	if failed > 0 {
		os.Exit(1)
	}
}

// inHost plays the script of the standard input, and prints the outcome.
func inHost(program string) (status int) {
	runtime.LockOSThread() // the host's services end with the thread that started them
	err := nstest.Enter()
	var s *script
	if err == nil {
		s, err = parse(os.Stdin)
	}
	o := outcome{}
	if err != nil {
		o.Error = err.Error()
	} else {
		o = perform(program, s)
	}
	if err := json.NewEncoder(os.Stdout).Encode(o); err != nil {
		return 1
	}
	return 0
}

// try plays a script in a throw-away host.
func try(program string, s *script) (o outcome, err error) {
	runtime.LockOSThread() // the host ends with the thread that made it
	defer runtime.UnlockOSThread()
	cmd := nstest.ThrowAway(played, program)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = strings.NewReader(s.String()), &stderr
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, &o)
	}
	if err == nil && o.Error != "" {
		err = fmt.Errorf("%s", o.Error)
	}
	if err != nil {
		err = fmt.Errorf("%w %s, of\n%s%s", err, stderr.Bytes(), s, strings.Join(o.Turns, "\n"))
	}
	return o, err
}

type options struct {
	root, out, chains, program string
	seed                       uint64
	number                     int
	time                       time.Duration
	width                      int
	stop                       int  // after so many failures; 0: never
	long                       bool // leave the scripts of failures as they are

	passed func() time.Duration // of time; nil: as on the wall
}

// fairlead is the command to test.
func (o options) fairlead() (program string, remove func(), err error) {
	if o.program != "" {
		program, err = filepath.Abs(o.program)
		return program, func() {}, err
	}
	dir, err := os.MkdirTemp("", "histories")
	if err != nil {
		return "", nil, err
	}
	if program, err = build(o.root, dir); err != nil {
		os.RemoveAll(dir)
	}
	return program, func() { os.RemoveAll(dir) }, err
}

// search plays histories of successive seeds, and reports those that fail.
func (o options) search() (failed int, err error) {
	program, remove, err := o.fairlead()
	if err != nil {
		return 0, err
	}
	defer remove()
	begin, known := time.Now(), map[string]bool{}
	var first []*script // of each kind
	count, err := o.searchWith(program, func(s *script, f failure) {
		fmt.Printf("seed %d, after %.0f s: %s\n", s.seed, time.Since(begin).Seconds(), f.Law)
		if like := s.chain + " " + f.Law; !known[like] {
			known[like] = true
			first = append(first, s)
		}
	})
	fmt.Printf("%d histories of %d steps in %.0f s, of processors %.0f s: %d fail\n", count.histories, count.steps,
		time.Since(begin).Seconds(), processors().Seconds(), count.failed)
	for _, s := range first { // not before, because it takes long
		err = errors.Join(err, o.report(program, s))
	}
	return count.failed, err
}

// processors is the time that the histories so far took of all processors.
func processors() time.Duration {
	var usage unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_CHILDREN, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// report makes a script that fails short, prints it, and writes it to a file.
func (o options) report(program string, s *script) error {
	if o.long {
		fmt.Println(s)
		return nil
	}
	short, out, err := shorten(program, s)
	if err != nil {
		return err
	}
	fmt.Printf("%s\n\n%s\n", out.Failure, short)
	if o.out == "" {
		return nil
	}
	name := filepath.Join(o.out, fmt.Sprintf("%s-%d.txt", s.chain, s.seed))
	fmt.Println("written to", name)
	return os.WriteFile(name, []byte(short.String()), 0o644)
}

type count struct{ histories, steps, failed int }

// searchWith calls found, one at a time, with each script that fails, which has the turns that were taken.
func (o options) searchWith(program string, found func(*script, failure)) (c count, err error) {
	var mu sync.Mutex
	var all sync.WaitGroup
	plays := plays{chains: strings.Split(o.chains, ","), next: o.seed, untried: map[string]int{}}
	if o.passed == nil {
		begin := time.Now()
		o.passed = func() time.Duration { return time.Since(begin) }
	}
	for range o.width {
		all.Go(func() {
			for {
				mu.Lock()
				over := err != nil || o.time > 0 && o.passed() > o.time || o.number > 0 && c.histories >= o.number ||
					o.stop > 0 && c.failed >= o.stop
				if over {
					mu.Unlock()
					return
				}
				c.histories++
				s := plays.script()
				mu.Unlock()
				out, terr := try(program, s)
				mu.Lock()
				plays.tell(s, out)
				c.steps += out.Steps
				if terr == nil && out.Failure != nil {
					c.failed++
					found(s.taken(out), *out.Failure)
				}
				err = cmp.Or(err, terr)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return c, err
}

// plays are the scripts of a search.
type plays struct {
	chains  []string
	next    uint64         // seed
	passed  int            // duels
	untried map[string]int // by what histories tell of: places where no duel was interrupted yet
}

// script is the next one. Most duels of which nothing is left to try but two interruptions are passed over.
func (p *plays) script() *script {
	const some = 4
	for {
		s := cast(p.chains[p.next%uint64(len(p.chains))], p.next)
		p.next++
		left, known := p.untried[s.teaches()]
		if s.kind() == "" || !known || left > 0 {
			return s
		}
		if p.passed++; p.passed%some == 0 {
			return s
		}
	}
}

func (p *plays) tell(s *script, o outcome) {
	if s.kind() != "" {
		p.untried[s.teaches()] = o.Untried
	}
}

// taken is the script with the turns that were taken.
func (s *script) taken(o outcome) *script {
	with := *s
	with.turns = nil
	for _, line := range o.Turns {
		_ = with.parseLine(line)
	}
	if o.Failure != nil {
		const enough = 12
		lines := append([]string{fmt.Sprint("seed ", s.seed), o.Failure.Law}, strings.Split(o.Failure.Text, "\n")...)
		with.why = lines[:min(len(lines), enough)]
	}
	return &with
}

// A try takes about a second, so the first two minutes make a script short enough to read, where that can be had at all.
const mostTries = 120

// shorten takes away from a script that fails what it fails without.
func shorten(program string, s *script) (*script, outcome, error) {
	best, last, err := again(program, s)
	if err != nil || best == nil {
		return s, outcome{Failure: &failure{"it did not fail again", strings.Join(s.why, "\n")}}, err
	}
	law := last.Failure.Law
	tries := 0
	for smaller := true; smaller; {
		smaller = false
		for _, candidate := range lesser(best) {
			if tries++; tries > mostTries {
				return best, last, nil
			}
			o, err := try(program, candidate)
			if err != nil {
				continue // no history: an actor waits for one that is not there
			}
			if o.Failure != nil && o.Failure.Law == law {
				best, last, smaller = candidate.taken(o), o, true
				break
			}
		}
	}
	return best, last, nil
}

// again plays a script that is to fail, up to three times: nil if it does not.
func again(program string, s *script) (*script, outcome, error) {
	for range 3 {
		o, err := try(program, s)
		if err != nil {
			return nil, o, err
		}
		if o.Failure != nil {
			return s.taken(o), o, nil
		}
	}
	return nil, outcome{}, nil
}

// lesser are the scripts with one thing less, or with fewer turns.
func lesser(s *script) (all []*script) {
	for _, a := range s.actors {
		if len(s.actors) > 1 {
			all = append(all, s.without(a.name))
		}
	}
	for i, c := range s.attached {
		if !slices.ContainsFunc(s.actors, func(a actor) bool { return a.object == c }) {
			less := *s
			less.attached = slices.Delete(slices.Clone(s.attached), i, i+1)
			all = append(all, &less)
		}
	}
	const fewest = 2
	for size := len(s.turns) / 2; size > 0 && len(s.turns) > fewest; size /= 2 { // many at once, as long as that goes
		for i := 0; i < len(s.turns); i += size {
			less := *s
			less.turns = slices.Delete(slices.Clone(s.turns), i, min(i+size, len(s.turns)))
			all = append(all, &less)
		}
	}
	return all
}

// replayAll plays the scripts of files.
func (o options) replayAll(paths []string) (failed int, err error) {
	program, remove, err := o.fairlead()
	if err != nil {
		return 0, err
	}
	defer remove()
	for _, path := range paths {
		out, err := replayFile(program, path)
		if err != nil {
			return failed, err
		}
		if out.Failure != nil {
			failed++
			fmt.Printf("%s: %s\n", path, out.Failure)
		} else {
			fmt.Printf("%s: %d steps, no failure\n", path, out.Steps)
		}
	}
	return failed, nil
}

func replayFile(program string, path string) (outcome, error) {
	f, err := os.Open(path)
	if err != nil {
		return outcome{}, err
	}
	defer f.Close()
	s, err := parse(f)
	if err != nil {
		return outcome{}, fmt.Errorf("%s: %w", path, err)
	}
	return try(program, s)
}
