package nstest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Skipped names, in the environment, a file that gets a line of package and test for each test that Skip skips
// here. The virtual machine of internal/vm runs just these.
const Skipped = "FAIRLEAD_SKIPPED"

// Need skips a test, in the kernel's words, where the kernel has no links of a kind; args are what ip(8) wants after
// it.
func Need(t testing.TB, kind string, args ...string) {
	t.Helper()
	ns := NewNS(t)
	RunIn(t, ns, "ip", "link", "add", "need0", "type", "veth", "peer", "name", "need1")
	args = append([]string{"link", "add", "link", "need0", "name", "need2", "type", kind}, args...)
	if out, err := Output(ns, exec.Command("ip", args...)); err != nil {
		Skip(t, fmt.Sprintf("type %s: %s", kind, out))
	}
}

// NeedProgram skips a test for want of a program, or of a file by its path, that .ci/packages installs. Where CI is in
// the environment all of them are there, or the test fails.
func NeedProgram(t testing.TB, names ...string) {
	t.Helper()
	switch why := Missing(names...); {
	case why == "":
	case os.Getenv("CI") != "":
		t.Fatal(why)
	default:
		t.Skip(why)
	}
}

// NeedRoot skips a test of a program that only root of the machine can run, not root of a user namespace.
func NeedRoot(t testing.TB, program string) {
	t.Helper()
	if m, err := os.ReadFile("/proc/self/uid_map"); err != nil ||
		!strings.HasSuffix(strings.TrimSpace(string(m)), " 4294967295") || os.Geteuid() != 0 {
		t.Skip(program + " takes root of the machine")
	}
}

// Missing is what NeedProgram says, or "" where all is there.
func Missing(names ...string) string {
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			return name + " is not installed: run .ci/packages"
		}
	}
	return ""
}

// NeedModule skips a test where the kernel lacks a module.
func NeedModule(t testing.TB, name string) {
	t.Helper()
	if _, err := os.Stat("/sys/module/" + name); err == nil {
		return
	}
	if out, err := exec.Command("modprobe", name).CombinedOutput(); err != nil {
		Skip(t, fmt.Sprintf("module %s: %v: %s", name, err, out))
	}
}

// Machine is in the environment in the virtual machine of internal/vm. One of another architecture has no compiler:
// Program is the path of cmd/fairlead there.
const (
	Machine = "FAIRLEAD_MACHINE"
	Program = "FAIRLEAD_PROGRAM"
)

// Fairlead is the path of cmd/fairlead, built from the tree of that path: once for all tests that Main runs.
func Fairlead(t testing.TB, tree string) string {
	t.Helper()
	if path := os.Getenv(Program); path != "" {
		return path
	}
	return Build(t, tree, "./cmd/fairlead")
}

// Build is the path of a program, built from a package of the module at that path: once for all tests that Main runs.
func Build(t testing.TB, module, pkg string) string {
	t.Helper()
	return Once(t, filepath.Base(pkg), func(path string) {
		cmd := exec.Command("go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", path, pkg)
		cmd.Dir = module
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go build: %v\n%s", err, out)
		}
	})
}

// Once is the path of a file of that name, which is made once for all tests that Main runs. They only read it.
func Once(t testing.TB, name string, make func(path string)) string {
	t.Helper()
	dir := os.Getenv(sharedVar)
	if dir == "" {
		dir = t.TempDir()
	}
	path := filepath.Join(dir, name)
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatalf("lock %s: %v", lock.Name(), err)
	}
	if _, err := os.Stat(path); err != nil {
		make(path)
	}
	return path
}

// NeedMachine skips a test that touches devices which only the virtual machine has to spare.
func NeedMachine(t testing.TB) {
	t.Helper()
	if os.Getenv(Machine) == "" {
		Skip(t, "this is not the virtual machine")
	}
}

// Skip skips a test for want of something that this kernel or host lacks and the virtual machine has.
func Skip(t testing.TB, why ...any) {
	t.Helper()
	if path := os.Getenv(Skipped); path != "" {
		if err := note(path, t.Name()); err != nil {
			t.Fatal(err)
		}
	}
	t.Skip(why...)
}

func note(path, test string) error {
	built, ok := debug.ReadBuildInfo()
	if !ok {
		return fmt.Errorf("note a skipped test: nothing says of which package")
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("note a skipped test: %w", err)
	}
	_, err = fmt.Fprintln(f, strings.TrimSuffix(built.Path, ".test"), test) // one write a line: others append too
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}
