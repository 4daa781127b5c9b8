package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/invoke"
)

// workerArg is the first argument of this program where it makes one check in a throw-away host.
const workerArg = "conformance-worker"

// A job is what a worker gets on standard input: one check of one subject, or with no check the question of its kind.
type job struct {
	Subject Subject       `json:"subject"`
	Check   string        `json:"check"`
	Limit   time.Duration `json:"limit"`
}

// A recognised is a worker's answer to the question of a plugin's versions and kind.
type recognised struct {
	Subject
	Problem string `json:"problem,omitempty"`
}

// Settings say what is tested and how.
type Settings struct {
	Plugins []string // paths
	Runtime string   // a command, with its arguments
	Profile string   // a file
	Only    []string // IDs or clauses of checks; none are all
	Jobs    int      // checks at a time; 0: four for each processor, for they wait for the kernel most of their time
	Limit   time.Duration
	// Progress is called when a check was made, once at a time, with how many were and how many there are.
	Progress func(made, of int)
}

// A Report is the outcomes of one subject.
type Report struct {
	Subject  Subject   `json:"subject"`
	Outcomes []Outcome `json:"outcomes"`
}

// Run tests plugins. An error means that it could not begin.
func Run(s Settings) ([]Report, error) {
	profile, err := LoadProfile(s.Profile)
	if err != nil {
		return nil, err
	}
	if s.Jobs == 0 {
		s.Jobs = 4 * runtime.GOMAXPROCS(0)
	}
	if err := profile.tests(s); err != nil {
		return nil, err
	}
	r := &runner{Settings: s, width: make(chan struct{}, s.Jobs)}
	var reports []Report
	for _, path := range s.Plugins {
		subject, problem, err := r.subject(path, profile)
		if problem != "" && len(s.Plugins) == 1 {
			err = errors.New(problem)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		report := Report{Subject: subject}
		if problem != "" { // which is no reason to leave the other plugins out
			report.Outcomes = []Outcome{{
				Check:   "recognition",
				Title:   "the plugin tells its versions, and its kind is known",
				Verdict: Verdict{Status: Error, Reason: problem},
				Repeat:  "fairlead-conformance --plugin " + quoted(subject.Path),
			}}
		}
		reports = append(reports, report)
	}
	if s.Runtime != "" {
		subject, err := runtimeSubject(s.Runtime, profile)
		if err != nil {
			return nil, err
		}
		reports = append(reports, Report{Subject: subject})
	}
	all := 0
	for i := range reports {
		report := &reports[i]
		if report.Outcomes == nil {
			report.Outcomes = r.selected(report.Subject)
		}
		all += len(report.Outcomes)
	}
	if all == 0 {
		return nil, errors.New("--only: no such check is for what is tested; --list says for what they are")
	}
	r.checkAll(reports, all)
	return reports, nil
}

type runner struct {
	Settings
	width chan struct{}
}

// checkAll makes the checks that have no verdict yet.
func (r *runner) checkAll(reports []Report, all int) {
	var checks sync.WaitGroup
	var mu sync.Mutex
	made := 0
	for _, report := range reports {
		for n := range report.Outcomes {
			checks.Go(func() {
				if o := &report.Outcomes[n]; o.Status == "" {
					r.check(report.Subject, o)
				}
				if r.Progress == nil {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				made++
				r.Progress(made, all)
			})
		}
	}
	checks.Wait()
}

// subject finds out what a plugin speaks and what it does. The problem is why that is not known.
func (r *runner) subject(path string, profile Profile) (s Subject, problem string, err error) {
	if s.Path, err = filepath.Abs(path); err != nil {
		return s, "", err
	}
	if info, err := os.Stat(s.Path); err != nil {
		return s, "", err
	} else if !info.Mode().IsRegular() {
		return s, "", errors.New("no plugin, for it is no file")
	}
	s.Type = filepath.Base(s.Path)
	s.Plugin = profile.Plugins[s.Type]
	var found recognised
	if err := r.work(job{Subject: s, Limit: r.Limit}, &found); err != nil || found.Problem != "" {
		return s, found.Problem, err
	}
	return found.Subject, "", nil
}

// runtimeSubject is the runtime that a command runs.
func runtimeSubject(command string, profile Profile) (s Subject, err error) {
	s.Command = strings.Fields(command)
	if len(s.Command) == 0 {
		return s, errors.New("--runtime: the command is empty")
	}
	if s.Path, err = exec.LookPath(s.Command[0]); err == nil {
		s.Path, err = filepath.Abs(s.Path)
	}
	s.Command[0], s.Type = s.Path, filepath.Base(s.Path)
	s.Plugin = profile.Plugins[s.Type]
	s.Kind = Runtime
	return s, err
}

// selected are the outcomes to come of the checks that apply to a subject.
func (r *runner) selected(s Subject) (list []Outcome) {
	for _, c := range Checks() {
		if !selects(r.Only, c) || !slices.Contains(c.Kinds, s.Kind) {
			continue
		}
		o := Outcome{Check: c.ID, Clause: c.Clause(), Title: c.Title, Sentence: c.Sentence}
		o.Repeat = "fairlead-conformance --only " + c.ID + " --plugin " + quoted(s.Path)
		if s.Kind == Runtime {
			o.Repeat = "fairlead-conformance --only " + c.ID + " --runtime " + quoted(strings.Join(s.Command, " "))
		}
		if r.Profile != "" {
			o.Repeat += " --profile " + quoted(r.Profile)
		}
		list = append(list, o)
	}
	return list
}

// check has a worker make one check.
func (r *runner) check(s Subject, o *Outcome) {
	r.width <- struct{}{}
	defer func() { <-r.width }()
	c := checkByID(o.Check)
	if reason, ok := s.skips(c); ok {
		o.Verdict = verdict(unfit("the profile says: " + reason))
		return
	}
	if c.from != "" && s.Kind != Runtime && !newest(s.Versions).AtLeast(c.from) {
		o.Verdict = verdict(unfit("it is about version " + string(c.from) + ", which the plugin does not speak"))
		return
	}
	if err := r.work(job{Subject: s, Check: o.Check, Limit: r.Limit}, &o.Verdict); err != nil {
		o.Verdict = verdict(err)
	}
}

// work runs this program again in a throw-away host. An ordinary user in a container may not be allowed to mount /proc,
// and so has a host whose processes are the machine's.
func (r *runner) work(j job, answer any) error {
	in, err := json.Marshal(j)
	if err != nil {
		return err
	}
	out, err := r.host(j, in, syscall.CLONE_NEWPID)
	var end *exec.ExitError
	if errors.As(err, &end) && end.ExitCode() == noProc {
		out, err = r.host(j, in, 0)
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(out, answer)
}

// host makes a throw-away host for a job, and returns what its worker printed.
func (r *runner) host(j job, in []byte, flags uintptr) ([]byte, error) {
	runtime.LockOSThread() // the host dies with the thread that started it
	defer runtime.UnlockOSThread()
	cmd := nstest.ThrowAway(workerArg)
	cmd.SysProcAttr.Cloneflags |= flags
	cmd.Env = append(cmd.Env, nstest.Keep+"="+filepath.Dir(j.Subject.Path))
	cmd.Stdin = bytes.NewReader(in)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.WaitDelay = r.Limit
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("a host of its own: %w: %s", err, excerpt(stderr.String()))
	}
	return out, err
}

// Work is for the main function of a program that calls Run, before anything else: it runs the program as one of the
// suite's plugins, or as a worker, where it was started as one.
func Work() {
	name := filepath.Base(os.Args[0])
	if slices.Contains(ownPlugins(), name) {
		os.Exit(serve(name, os.Stdin, os.Stdout, os.Stderr))
	}
	if len(os.Args) == 2 && os.Args[1] == workerArg {
		status, err := 0, error(nil)
		if os.Getpid() == 1 {
			status, err = hostInit()
		} else if err = work(os.Stdin, os.Stdout); err != nil {
			status = 1
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(status)
	}
}

func work(stdin io.Reader, stdout io.Writer) error {
	if err := nstest.Enter(); err != nil {
		return err
	}
	// An ordinary user's PATH often lacks the directories where ip and nft live.
	os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin")
	var j job
	if err := json.NewDecoder(stdin).Decode(&j); err != nil {
		return err
	}
	if err := furnish(); err != nil {
		return err
	}
	t := &trial{ctx: context.Background(), subject: j.Subject, limit: j.Limit, version: newest(j.Subject.Versions)}
	if j.Check == "" {
		var found recognised
		if err := t.identify(); err != nil {
			found.Problem = err.Error()
		}
		found.Subject = t.subject
		return json.NewEncoder(stdout).Encode(found)
	}
	err := t.prepare()
	if err == nil {
		err = ended(func() { checkByID(j.Check).run(t) })
	}
	v := verdict(err)
	if v.Status == Fail && t.last != nil {
		v.Call = t.last.shell()
	}
	return json.NewEncoder(stdout).Encode(v)
}

// prepare runs the commands that the profile has for the host.
func (t *trial) prepare() error {
	for _, argv := range t.subject.Host {
		if err := t.run(argv); err != nil {
			return fmt.Errorf("prepare the host: %w", err)
		}
	}
	return nil
}

// run runs a command of the profile on the caller's thread, and so in its namespace.
func (t *trial) run(argv []string) error {
	if len(argv) == 0 {
		return errors.New("a command of the profile is empty")
	}
	ctx, cancel := context.WithTimeout(t.ctx, t.limit)
	defer cancel()
	if err := invoke.Hook(ctx, argv, invoke.Call{}); err != nil {
		return fmt.Errorf("%q: %w", argv, err)
	}
	return nil
}

// checkByID is the check with an ID; a worker knows the same as who started it.
func checkByID(id string) Check {
	all := Checks()
	i := slices.IndexFunc(all, func(c Check) bool { return c.ID == id })
	if i < 0 {
		return Check{run: func(*trial) { require(errors.New("there is no check " + id)) }}
	}
	return all[i]
}
