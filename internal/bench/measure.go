package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The sides, by name. Not every case has all.
const (
	ours      = "ours"
	chained   = "ours in one chain"
	reference = "reference"
	floored   = "floor"
	command   = "`fairlead gc --gone`" // in the table of GC alone
)

// sides are those of a case.
func (o options) sides(c benchCase) []string {
	all := []string{ours, reference}
	if c.Chained && !o.virtual {
		all = append(all, chained)
	}
	if o.floor != "" && c.parts() != nil && !o.virtual {
		all = append(all, floored)
	}
	return all
}

// A side is one of them: its plugins, and its host.
type side struct {
	name, dir string
	cmd       *exec.Cmd
	in        io.WriteCloser
	enc       *json.Encoder
	dec       *json.Decoder
}

// start makes the host of a side.
func (o options) start(name string) (*side, error) {
	dirs := map[string]string{ours: o.plugins, chained: o.plugins, command: o.plugins, reference: o.reference,
		floored: o.floor}
	dir, err := absolute(dirs[name])
	if err != nil {
		return nil, err
	}
	return startSide(name, dir)
}

// onOwnHost gives orders to a side that has a host of its own, and returns the last answer.
func (o options) onOwnHost(name string, orders ...order) (a answer, err error) {
	s, err := o.start(name)
	if err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	for _, order := range orders {
		if a, err = s.ask(order); err != nil {
			return a, err
		}
	}
	return a, nil
}

func startSide(name, dir string) (*side, error) {
	cmd := exec.Command("/proc/self/exe", "-worker")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &side{name, dir, cmd, in, json.NewEncoder(in), json.NewDecoder(out)}, nil
}

func (s *side) ask(o order) (answer, error) {
	o.Side, o.Dir = s.name, s.dir
	var a answer
	err := s.enc.Encode(o)
	if err == nil {
		err = s.dec.Decode(&a)
	}
	if err == nil && a.Error != "" {
		err = errors.New(a.Error)
	}
	if err != nil {
		return a, fmt.Errorf("%s: %w", s.name, err)
	}
	return a, nil
}

// close ends the host and all that is in it.
func (s *side) close() error {
	return errors.Join(s.in.Close(), s.cmd.Wait())
}

// verbs are the measured ones, in the order of a container's life.
func verbs() []string { return []string{"ADD", "CHECK", "DEL"} }

// number is the place of c among the cases, by which a worker knows it.
func (c benchCase) number() int {
	return slices.IndexFunc(cases(), func(d benchCase) bool { return d.Name == c.Name })
}

// measure runs one case at its loads, from the least to the greatest: a host for each side, which all have the same.
func measure(o options, c benchCase, loads []load) (lines []line, err error) {
	var sides []*side
	for _, name := range o.sides(c) {
		s, err := o.start(name)
		if err != nil {
			return nil, err
		}
		sides = append(sides, s)
		defer func() { err = errors.Join(err, s.close()) }()
	}
	from := -1
	for i, present := range loads {
		fmt.Fprintf(os.Stderr, "%s at %s:", c.Name, present)
		started := time.Now()
		ready := make(chan error)
		for _, s := range sides {
			go func() {
				_, err := s.ask(order{Case: c.number(), Populate: &present, From: from})
				fmt.Fprintf(os.Stderr, " %s is ready after %v;", s.name, time.Since(started).Round(time.Second))
				ready <- err
			}()
		}
		for range sides {
			err = errors.Join(err, <-ready)
		}
		if err != nil {
			return nil, err
		}
		more, err := rounds(o, c, sides, 1+i*(o.rounds+1))
		if err != nil {
			return nil, err
		}
		for _, l := range more {
			l.Present = present
			lines = append(lines, l)
		}
		from = present.Count
		fmt.Fprintf(os.Stderr, " done after %v\n", time.Since(started).Round(time.Second))
	}
	return lines, nil
}

// enough is how long the rounds of one case at one load may take, once there were the fewest.
const (
	enough = 20 * time.Second
	fewest = 5
)

// rounds has the sides attach, check and detach a container in turn; the first container has that number. The first
// round's time is not counted: the bridge, the chains and the indexes are made in it, and processes are watched.
func rounds(o options, c benchCase, sides []*side, number int) (lines []line, err error) {
	took, fails := map[string]map[string][]cost{}, map[string][]string{}
	started := time.Now()
	for round := range o.rounds + 1 {
		if round > fewest && time.Since(started) > enough {
			break
		}
		for turn := range sides {
			s := sides[(turn+round)%len(sides)] // who went last goes first now: what one leaves behind hits all
			a, err := s.ask(order{Case: c.number(), Measure: number + round, Watch: round == 0})
			if err != nil {
				return nil, err
			}
			for verb, c := range a.Took {
				if took[verb] == nil {
					took[verb] = map[string][]cost{}
				}
				took[verb][s.name] = append(took[verb][s.name], c)
			}
			if round == 0 {
				continue
			}
			for verb, f := range a.Fails {
				said := fmt.Sprintf("%s of %s fails, %s: ", verb, c.Name, s.name)
				if !slices.ContainsFunc(fails[verb], func(f string) bool { return strings.HasPrefix(f, said) }) {
					fails[verb] = append(fails[verb], said+strings.TrimRight(first(f), "; "))
				}
			}
		}
	}
	for _, verb := range verbs() {
		l := line{Case: c.Name, Verb: verb, By: summaries(took[verb]), Fails: fails[verb]}
		for _, p := range c.Plugins {
			part := p["type"].(string)
			if t, ok := took[verb+" "+part]; ok {
				l.Parts = append(l.Parts, line{Case: part, Verb: verb, By: summaries(t)})
			}
		}
		lines = append(lines, l)
	}
	return lines, nil
}

func summaries(by map[string][]cost) map[string]summary {
	all := map[string]summary{}
	for name, costs := range by {
		all[name] = summarise(costs)
	}
	return all
}

// startUp compares what a process costs before it does anything: VERSION of both sides and a program
// that prints a line.
func startUp(o options) ([]start, error) {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	hello := dir + "/hello"
	source := []byte("package main\n\nimport \"os\"\n\nfunc main() { os.Stdout.WriteString(\"hello\\n\") }\n")
	if err := os.WriteFile(hello+".go", source, 0o600); err != nil {
		return nil, err
	}
	// Copied, as installed programs are: what the linker wrote is in small pages, and starts slower.
	build := exec.Command("sh", "-c",
		`go build -trimpath -ldflags '-s -w' -o "$0.linked" "$0.go" && cp "$0.linked" "$0"`, hello)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build hello: %w\n%s", err, out)
	}
	programs := []start{
		{Name: "Go program that prints a line", path: hello},
		{Name: "our bridge, VERSION", path: o.plugins + "/bridge"},
		{Name: "the reference's bridge, VERSION", path: o.reference + "/bridge"},
		{Name: "our bridge, VERSION, after an eviction", path: dir + "/evicted/bridge"},
		{Name: "our bridge, VERSION, after fairlead warm", path: dir + "/warm/bridge"},
	}
	for _, p := range programs[3:] {
		if out, err := exec.Command("install", "-D", o.plugins+"/bridge", p.path).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("copy a plugin: %w\n%s", err, out)
		}
	}
	if err := readInPages(dir + "/evicted/bridge"); err != nil {
		return nil, err
	}
	if out, err := exec.Command(filepath.Join(o.plugins, "../fairlead"), "warm",
		dir+"/warm/bridge").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("fairlead warm: %w\n%s", err, out)
	}
	took := make([][]cost, len(programs)) // the first of each is not counted
	for range 8*o.rounds + 1 {
		for i, p := range programs {
			_, c, err := spawn(p.path, []string{"CNI_COMMAND=VERSION"}, nil, false)
			if err != nil {
				return nil, err
			}
			took[i] = append(took[i], c)
		}
	}
	for i := range programs {
		programs[i].Took = summarise(took[i])
		programs[i].Ratio = ratio(programs[i].Took.Median, programs[0].Took.Median)
	}
	return programs, nil
}

// readInPages has a file in memory in pages of 4 KiB, as the kernel reads it when a program is first started.
func readInPages(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_ = f.Sync() // what is not written yet cannot be dropped
	for _, advice := range []int{unix.FADV_DONTNEED, unix.FADV_RANDOM} {
		if err := unix.Fadvise(int(f.Fd()), 0, 0, advice); err != nil {
			return fmt.Errorf("fadvise %s: %w", path, err)
		}
	}
	page := make([]byte, 4096)
	for err == nil {
		_, err = f.Read(page)
	}
	if err == io.EOF {
		return nil
	}
	return err
}
