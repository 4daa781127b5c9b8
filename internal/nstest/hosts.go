package nstest

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// partsVar names the file that Apart writes its subtests to, partVar the one subtest that Apart runs, and sharedVar the
// directory that all hosts of a test binary have in common.
const (
	partsVar  = "FAIRLEAD_NSTEST_PARTS"
	partVar   = "FAIRLEAD_NSTEST_PART"
	sharedVar = "FAIRLEAD_NSTEST_SHARED"
)

// ran is whether Apart ran the subtest that partVar names.
var ran bool

// Apart runs a subtest in a host of its own, side by side with the others. The test that calls it runs again for each
// such subtest, so what else it does has to be little.
func Apart(t *testing.T, name string, fn func(*testing.T)) {
	t.Helper()
	full := t.Name() + "/" + name
	if path := os.Getenv(partsVar); path != "" {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		_, err = fmt.Fprintln(f, full)
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		return
	}
	if only := os.Getenv(partVar); only == "" || only == full {
		t.Run(name, func(t *testing.T) {
			ran = true
			fn(t)
		})
	}
}

// inHost runs the tests that the flags name, here.
func inHost(m *testing.M) (status int) {
	status = m.Run()
	if part := os.Getenv(partVar); part != "" && !ran && status == 0 {
		fmt.Println("the subtest", part, "did not run")
		return 1
	}
	return status
}

// hosts runs tests, each in a host of its own, at most width at a time.
type hosts struct {
	dir      string // temporary files
	wd       string
	width    chan struct{}
	deadline time.Time // of all tests; zero: none
	failFast bool
	testLog  string // what `go test` reads to know which files and variables a cached result depends on

	tests  sync.WaitGroup
	mu     sync.Mutex // guards output and what follows
	serial int
	status int
	log    bytes.Buffer
}

const logHeader = "# test log\n"

// understood are the flags of package testing that mean the same for tests in processes of their own.
var understood = []string{"test.paniconexit0", "test.v", "test.timeout", "test.count", "test.run", "test.skip",
	"test.short", "test.failfast", "test.parallel", "test.testlogfile"}

// severalHosts is nil where the flags want one process: a profile, coverage, a benchmark, a fuzzer, a subtest,
// -parallel 1.
func severalHosts() *hosts {
	text := func(name string) string { return flag.Lookup(name).Value.String() }
	width := 4 * runtime.GOMAXPROCS(0) // tests wait for the kernel's grace periods most of their time
	one := strings.Contains(text("test.run")+text("test.skip"), "/")
	flag.Visit(func(f *flag.Flag) {
		one = one || strings.HasPrefix(f.Name, "test.") && !slices.Contains(understood, f.Name)
		if f.Name == "test.parallel" {
			width, _ = strconv.Atoi(f.Value.String())
		}
	})
	if one || width < 2 {
		return nil
	}
	h := &hosts{width: make(chan struct{}, width), failFast: text("test.failfast") == "true",
		testLog: text("test.testlogfile")}
	if limit, err := time.ParseDuration(text("test.timeout")); err == nil && limit > 0 {
		h.deadline = time.Now().Add(limit)
	}
	return h
}

// run runs all tests and returns the status to exit with.
func (h *hosts) run() (status int, err error) {
	if h.wd, err = os.Getwd(); err != nil {
		return 0, err
	}
	if h.dir, err = os.MkdirTemp("", "nstest"); err != nil {
		return 0, err
	}
	defer os.RemoveAll(h.dir)
	list := exec.Command("/proc/self/exe", "-test.list", cmp.Or(flag.Lookup("test.run").Value.String(), "."))
	list.Args[0] = os.Args[0]
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return 0, fmt.Errorf("list the tests: %w", err)
	}
	skip, err := regexp.Compile(cmp.Or(flag.Lookup("test.skip").Value.String(), "^$")) // the list has what it names
	if err != nil {
		return 0, fmt.Errorf("-skip: %w", err)
	}
	for name := range strings.Lines(string(out)) {
		if name = strings.TrimSpace(name); !strings.HasPrefix(name, "Benchmark") && !skip.MatchString(name) {
			h.start(name, false)
		}
	}
	h.tests.Wait()
	fmt.Println(h.verdict())
	if h.testLog != "" {
		err = os.WriteFile(h.testLog, slices.Concat([]byte(logHeader), h.log.Bytes()), 0o666)
	}
	return h.status, err
}

func (h *hosts) start(name string, part bool) {
	h.tests.Go(func() {
		h.width <- struct{}{}
		defer func() { <-h.width }()
		runtime.LockOSThread() // the death of the parent is that of the thread that started the child
		defer runtime.UnlockOSThread()
		h.one(name, part)
	})
}

// one runs one test, prints what it says and starts its parts.
func (h *hosts) one(name string, part bool) {
	h.mu.Lock()
	h.serial++
	file := filepath.Join(h.dir, strconv.Itoa(h.serial))
	skip := h.failFast && h.status != 0
	h.mu.Unlock()
	if skip {
		return
	}
	flags := []string{"-test.run=" + exactly(name)}
	if h.testLog != "" {
		flags = append(flags, "-test.testlogfile="+file+".log")
	}
	if left := time.Until(h.deadline); !h.deadline.IsZero() {
		if left <= 0 {
			h.finish([]byte(name+" was not begun: -timeout is over\n"), nil, 1)
			return
		}
		flags = append(flags, "-test.timeout="+left.String())
	}
	cmd := ThrowAway(slices.Insert(slices.Clone(os.Args[1:]), len(os.Args)-1-flag.NArg(), flags...)...)
	cmd.Env = append(cmd.Env, partsVar+"="+file, sharedVar+"="+h.dir)
	if part {
		cmd.Env = append(cmd.Env, partsVar+"=", partVar+"="+name)
	}
	cmd.WaitDelay = 10 * time.Second // for what is left behind and holds the output open
	out, err := cmd.CombinedOutput()
	status := 0
	if err != nil {
		status = max(cmd.ProcessState.ExitCode(), 1)
		var exit *exec.ExitError
		if !errors.As(err, &exit) || !exit.Exited() {
			out = fmt.Appendf(out, "%s: %v\n", name, err)
		}
	}
	parts, perr := os.ReadFile(file)
	log, lerr := os.ReadFile(file + ".log")
	for _, err := range []error{perr, lerr} {
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			out, status = fmt.Appendf(out, "%s: %v\n", name, err), 1
		}
	}
	for name := range strings.Lines(string(parts)) {
		h.start(strings.TrimSpace(name), true)
	}
	h.finish(withoutVerdict(out), log, status)
}

// exactly is the pattern that one test's name matches.
func exactly(name string) string {
	var parts []string
	for part := range strings.SplitSeq(name, "/") {
		parts = append(parts, "^"+regexp.QuoteMeta(part)+"$")
	}
	return strings.Join(parts, "/")
}

// withoutVerdict is what a test binary printed without its last line, which only the sum of all may say.
func withoutVerdict(out []byte) []byte {
	rest := bytes.TrimSuffix(out, []byte("\n"))
	at := bytes.LastIndexByte(rest, '\n') + 1
	switch string(bytes.TrimPrefix(rest[at:], []byte{0x16})) { // the mark of -test.v=test2json
	case "PASS", "FAIL":
		return out[:at]
	}
	return out
}

// finish prints what a test said, and remembers its status and log.
func (h *hosts) finish(said, log []byte, status int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.status = max(h.status, status)
	h.log.Write(bytes.TrimPrefix(log, []byte(logHeader)))
	fmt.Fprintf(&h.log, "chdir %s\n", h.wd) // the next test begins there
	os.Stdout.Write(said)
}

// verdict is the last line of a test binary.
func (h *hosts) verdict() string {
	mark := ""
	if flag.Lookup("test.v").Value.String() == "test2json" {
		mark = "\x16"
	}
	if h.status != 0 {
		return mark + "FAIL"
	}
	return mark + "PASS"
}
