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

// A side is one of the two: its plugins, and its host.
type side struct {
	name, dir string
	cmd       *exec.Cmd
	in        io.WriteCloser
	enc       *json.Encoder
	dec       *json.Decoder
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
	o.Dir = s.dir
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

// measure runs one case at one load: a host for each side, the same state in both, and then rounds in
// which the sides take turns.
func measure(o options, c benchCase, present load) (lines []line, err error) {
	fmt.Fprintf(os.Stderr, "%s at %s:", c.Name, present)
	started := time.Now()
	number := slices.IndexFunc(cases(), func(d benchCase) bool { return d.Name == c.Name })
	var sides [2]*side
	for i, s := range []struct{ name, dir string }{{"ours", o.plugins}, {"reference", o.reference}} {
		dir, err := absolute(s.dir)
		if err != nil {
			return nil, err
		}
		if sides[i], err = startSide(s.name, dir); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, sides[i].close()) }()
	}
	ready := make(chan error)
	for _, s := range sides {
		go func() {
			_, err := s.ask(order{Case: number, Populate: &present})
			fmt.Fprintf(os.Stderr, " %s is ready after %v;", s.name, time.Since(started).Round(time.Second))
			ready <- err
		}()
	}
	if err := errors.Join(<-ready, <-ready); err != nil {
		return nil, err
	}
	took := map[string][2][]time.Duration{}
	fails := map[string][2]string{}
	for round := range o.rounds + 1 {
		for turn := range sides {
			i := (turn + round) % 2 // whoever went second goes first now: what one leaves behind hits both
			a, err := sides[i].ask(order{Case: number, Measure: round + 1})
			if err != nil {
				return nil, err
			}
			if round == 0 {
				continue // the bridge, the chains and the indexes are made once
			}
			for verb, d := range a.Took {
				t := took[verb]
				t[i] = append(t[i], d)
				took[verb] = t
			}
			for verb, f := range a.Fails {
				t := fails[verb]
				t[i] = first(f)
				fails[verb] = t
			}
		}
	}
	fmt.Fprintf(os.Stderr, " done after %v\n", time.Since(started).Round(time.Second))
	for _, verb := range verbs() {
		l := line{Case: c.Name, Present: present, Verb: verb, Ours: summarise(took[verb][0]), Reference: summarise(took[verb][1])}
		for i, s := range sides {
			if f := fails[verb][i]; f != "" {
				l.Fails = append(l.Fails, fmt.Sprintf("%s of %s fails, %s: %s", verb, c.Name, s.name, strings.TrimRight(f, "; ")))
			}
		}
		l.Ratio = ratio(l.Reference.Median, l.Ours.Median)
		for _, p := range c.Plugins {
			part := p["type"].(string)
			if t, ok := took[verb+" "+part]; ok {
				ours, reference := summarise(t[0]), summarise(t[1])
				l.Parts = append(l.Parts, line{Case: part, Verb: verb, Ours: ours, Reference: reference, Ratio: ratio(reference.Median, ours.Median)})
			}
		}
		lines = append(lines, l)
	}
	return lines, nil
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
	if err := os.WriteFile(hello+".go", []byte("package main\n\nimport \"os\"\n\nfunc main() { os.Stdout.WriteString(\"hello\\n\") }\n"), 0o600); err != nil {
		return nil, err
	}
	// Copied, as installed programs are: what the linker wrote is in small pages, and starts slower.
	build := exec.Command("sh", "-c", `go build -trimpath -ldflags '-s -w' -o "$0.linked" "$0.go" && cp "$0.linked" "$0"`, hello)
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
	if out, err := exec.Command(filepath.Join(o.plugins, "../fairlead"), "warm", dir+"/warm/bridge").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("fairlead warm: %w\n%s", err, out)
	}
	const rounds = 200
	took := make([][]time.Duration, len(programs))
	for range rounds {
		for i, p := range programs {
			_, d, err := spawn(p.path, []string{"CNI_COMMAND=VERSION"}, nil)
			if err != nil {
				return nil, err
			}
			took[i] = append(took[i], d)
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
