package script

import (
	"bufio"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

const tree = "../../.."

func TestMain(m *testing.M) { nstest.Main(m) }

// oneScript runs a script as the test that it is given.
type oneScript struct{ *testing.T }

func (oneScript) Parallel() {}

func (oneScript) Verbose() bool { return testing.Verbose() }

func (o oneScript) Run(_ string, fn func(testscript.T)) { fn(o) }

// TestScript runs the real program in throw-away hosts, one for each script, with ip(8) and nft(8) as witnesses. A run
// has a third of the scripts that break each thing in turn for doctor to find.
//
// clause: C10 K1 P22 R6 R10
func TestScript(t *testing.T) {
	scripts, err := filepath.Glob(tree + "/internal/command/cli/testdata/script/*.txtar")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	var all, doctors []string
	for _, file := range scripts {
		if strings.HasPrefix(filepath.Base(file), "doctor") {
			doctors = append(doctors, file)
			continue
		}
		all = append(all, file)
	}
	all = append(all, nstest.Some(t, 3, doctors)...)
	for _, file := range all {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		nstest.Apart(t, name, func(t *testing.T) { script(t, oneScript{t}, file) })
	}
}

func script(t *testing.T, by testscript.T, file string) {
	bin := filepath.Dir(nstest.Fairlead(t, tree))
	// An ordinary user's PATH often lacks the directories where ip and nft live.
	t.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin")
	examples, err := filepath.Abs(tree + "/docs/examples")
	if err != nil {
		t.Fatal(err)
	}
	drill, err := filepath.Abs(tree + "/internal/command/cli/testdata/drill") // fixes and looks
	if err != nil {
		t.Fatal(err)
	}
	goEnv := goEnvironment(t)
	params := testscript.Params{
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			if names, err := os.ReadFile(e.WorkDir + "/need"); err == nil { // programs, as nstest.NeedProgram has them
				if why := nstest.Missing(strings.Fields(string(names))...); why != "" && os.Getenv("CI") == "" {
					e.T().Skip(why)
				} else if why != "" {
					return errors.New(why)
				}
			}
			bare(t.Fatalf)
			e.Defer(func() { killDescendants(t.Fatalf) })
			e.Setenv("PATH", bin+":"+drill+":"+os.Getenv("PATH"))
			e.Setenv("NETCONFPATH", e.WorkDir+"/net.d")
			e.Setenv("FAIRLEAD", filepath.Join(bin, "fairlead"))
			e.Setenv("EXAMPLES", examples)
			e.Setenv("REFERENCE", "/usr/lib/cni") // Debian's package of the reference plugins
			e.Vars = append(e.Vars, goEnv...)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":        exits,
			"nothing-left": nothingLeft,
		},
	}
	params.Files, params.Deadline = []string{file}, nstest.Deadline(t)
	testscript.RunT(by, params)
}

// goEnvironment is what a script needs to build with this tree, TREE, and without a network.
func goEnvironment(t *testing.T) []string {
	t.Helper()
	tree, err := filepath.Abs(tree)
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv(nstest.Program) != "" {
		return []string{"TREE=" + tree}
	}
	out, err := exec.Command("go", "env", "GOCACHE", "GOMODCACHE").Output()
	dirs := strings.Fields(string(out))
	if err != nil || len(dirs) != 2 {
		t.Fatalf("go env: %v: %q", err, out)
	}
	return []string{"TREE=" + tree, "GOCACHE=" + dirs[0], "GOMODCACHE=" + dirs[1], "GOPROXY=off", "CGO_ENABLED=0"}
}

// exits STATUS PROGRAM ARGUMENT... is exec for an exit status of its own.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 || neg {
		ts.Fatalf("usage: exits STATUS PROGRAM [ARGUMENT...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	err = ts.Exec(args[1], args[2:]...)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

// nothingLeft fails if anything of an attachment is left on the host. Bridges and what always stands in a
// table are shared and may stay, but empty.
func nothingLeft(ts *testscript.TestScript, neg bool, args []string) {
	left := linksLeft(ts.Fatalf)
	// What a network has for its bridge stays with the bridge.
	if rules := shared.ReplaceAllString(witness(ts.Fatalf, "nft", "list", "ruleset"), ""); element.MatchString(rules) {
		left = append(left, rules)
	}
	left = append(left, stateFiles(ts.Fatalf)...)
	if len(left) > 0 {
		ts.Fatalf("left:\n%s", strings.Join(left, "\n"))
	}
}

// element matches an attachment's elements in what nft(8) prints, and shared those of a network itself.
var (
	element = regexp.MustCompile(`elements = \{ *[^ }\n]|[0-9a-f]{12} [0-9a-f]{16} `)
	shared  = regexp.MustCompile(`[^{,\n]*[0-9a-f]{12} [0-9a-f]{16} [^/"]+//[^"]*",?`)
)

// linksLeft are the links of containers. The kernel takes a while to take down what was in a namespace whose
// last user has gone, and says when it has.
func linksLeft(fatal func(string, ...any)) (left []string) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	monitor := exec.CommandContext(ctx, "ip", "monitor", "link")
	events, err := monitor.StdoutPipe()
	if err != nil {
		fatal("%v", err)
	}
	if err := monitor.Start(); err != nil {
		fatal("%v", err)
	}
	defer monitor.Wait()
	defer cancel()
	for in := bufio.NewScanner(events); ; {
		left = nil
		bridges := witness(fatal, "ip", "-br", "link", "show", "type", "bridge")
		for line := range strings.Lines(witness(fatal, "ip", "-br", "link")) {
			if name := strings.Fields(line)[0]; name != "lo" && !strings.Contains(bridges, name+" ") {
				left = append(left, "link "+strings.TrimSpace(line))
			}
		}
		if len(left) == 0 || ctx.Err() != nil {
			return left
		}
		in.Scan() // or the time is over
	}
}

// bare takes away what a script left, so that the next one can be understood by itself.
func bare(fatal func(string, ...any)) {
	for _, f := range stateFiles(fatal) {
		unix.Unmount(f, unix.MNT_DETACH)
		os.RemoveAll(f)
	}
	for line := range strings.Lines(witness(fatal, "ip", "-br", "link")) {
		if name, _, _ := strings.Cut(strings.Fields(line)[0], "@"); name != "lo" {
			exec.Command("ip", "link", "del", name).Run() // its peer may have taken it along
		}
	}
	witness(fatal, "nft", "flush", "ruleset")
	for _, dir := range []string{"/run/cni/fairlead", "/var/lib/cni/networks"} {
		if err := os.RemoveAll(dir); err != nil {
			fatal("%v", err)
		}
	}
}

// stateFiles are the files of attachments: not those of an allocator for itself.
func stateFiles(fatal func(string, ...any)) (left []string) {
	for _, pattern := range []string{"/run/netns/*", "/run/cni/fairlead/run/*", "/var/lib/cni/results/*",
		"/var/lib/cni/networks/*/*"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			fatal("%v", err)
		}
		for _, f := range files {
			if !strings.HasPrefix(pattern, "/var/lib/cni/networks") || net.ParseIP(filepath.Base(f)) != nil {
				left = append(left, f)
			}
		}
	}
	return left
}

func witness(fatal func(string, ...any), name string, args ...string) string {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		fatal("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}
