package install

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"golang.org/x/sys/unix"
)

// goProgram is a copy of a program with this main package, as Go's linker names it, that prints what it says.
func goProgram(t *testing.T, main, says string) string {
	t.Helper()
	built := nstest.Once(t, strings.ReplaceAll(main, "/", "_")+"-"+says, func(path string) { buildGo(t, path, main, says) })
	program, err := os.ReadFile(built)
	must(t, err)
	path := filepath.Join(t.TempDir(), "program")
	must(t, os.WriteFile(path, program, 0o755))
	return path
}

func buildGo(t *testing.T, path, main, says string) {
	t.Helper()
	dir, mod := t.TempDir(), "github.com/containernetworking/plugins"
	if strings.HasPrefix(main, module) {
		mod = module
	}
	pkg := filepath.Join(dir, strings.TrimPrefix(main, mod))
	must(t, os.MkdirAll(pkg, 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module "+mod+"\n\ngo 1.26\n"), 0o644))
	must(t, os.WriteFile(filepath.Join(pkg, "main.go"), []byte("package main\n\nfunc main() { println(`"+says+"`) }\n"), 0o644))
	build := exec.Command("go", "build", "-trimpath", "-o", path, main)
	build.Dir = dir
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, said)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// directoryOf has one program under several names.
func directoryOf(t *testing.T, program string, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o755))
	for _, name := range names {
		must(t, os.Link(program, filepath.Join(dir, name)))
	}
	return dir
}

// world is two versions of Fairlead, and a directory with a plugin of the reference and a stranger's.
func world(t *testing.T) (v1, v2, dir string) {
	t.Helper()
	v1 = directoryOf(t, goProgram(t, module+"/cmd/cni", "v1"), "bridge", "loopback", "old", "route")
	v2 = directoryOf(t, goProgram(t, module+"/cmd/cni", "v2"), "bridge", "loopback", "tap", "route")
	dir = directoryOf(t, goProgram(t, "github.com/containernetworking/plugins/plugins/main/bridge", "reference"), "bridge")
	must(t, os.WriteFile(filepath.Join(dir, "route"), []byte("#!/bin/sh\necho stranger >&2\n"), 0o755))
	return v1, v2, dir
}

// says is what each file of a directory says of itself, as "name=said".
func says(t *testing.T, dir string) string {
	t.Helper()
	names, err := list(dir)
	must(t, err)
	var all []string
	for _, name := range names {
		cmd := exec.Command(filepath.Join(dir, name))
		var said bytes.Buffer
		cmd.Stderr = &said
		must(t, cmd.Run())
		all = append(all, name+"="+strings.TrimSpace(said.String()))
	}
	return strings.Join(all, " ")
}

func states(entries []Entry) string {
	var all []string
	for _, e := range entries {
		all = append(all, e.Name+"="+string(e.State))
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func want(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %s\nwant %s", what, got, want)
	}
}

// Each step of an installation's life says what it did and leaves what it says.
func TestLife(t *testing.T) {
	v1, v2, dir := world(t)
	step := func(what string, entries []Entry, err error, did, has string) {
		t.Helper()
		must(t, err)
		want(t, what, states(entries), did)
		want(t, what, says(t, dir), has)
	}
	const before = "bridge=reference route=stranger"
	c, err := planFrom(v1, dir, false)
	step("plan", c.Entries, err, "bridge=replaced loopback=added old=added route=kept", before)
	c, err = installFrom(v1, dir, true)
	step("beside the reference", c.Entries, err, "bridge=kept loopback=added old=added route=kept",
		"bridge=reference loopback=v1 old=v1 route=stranger")
	c, err = installFrom(v1, dir, false)
	step("install", c.Entries, err, "bridge=replaced loopback=same old=same route=kept",
		"bridge=v1 loopback=v1 old=v1 route=stranger")
	c, err = installFrom(v2, dir, false)
	step("upgrade", c.Entries, err, "bridge=updated loopback=updated old=removed route=kept tap=added",
		"bridge=v2 loopback=v2 route=stranger tap=v2")
	c, err = installFrom(v2, dir, false)
	step("again", c.Entries, err, "bridge=same loopback=same route=kept tap=same",
		"bridge=v2 loopback=v2 route=stranger tap=v2")
	if c.Changes() {
		t.Error("a second install changes something")
	}
	entries, err := Rollback(dir)
	step("rollback", entries, err, "bridge=restored loopback=restored old=restored tap=removed",
		"bridge=v1 loopback=v1 old=v1 route=stranger")
	if _, err := Rollback(dir); !errors.Is(err, ErrNothingKept) {
		t.Errorf("a second rollback: %v", err)
	}
	c, err = installFrom(v2, dir, false)
	step("upgrade again", c.Entries, err, "bridge=updated loopback=updated old=removed route=kept tap=added",
		"bridge=v2 loopback=v2 route=stranger tap=v2")
	must(t, os.Remove(filepath.Join(dir, "loopback")))
	must(t, os.WriteFile(filepath.Join(dir, "loopback"), []byte("#!/bin/sh\necho stranger >&2\n"), 0o755))
	entries, err = Rollback(dir)
	step("rollback past a stranger's", entries, err, "bridge=restored loopback=kept old=restored tap=removed",
		"bridge=v1 loopback=stranger old=v1 route=stranger")
	entries, err = Uninstall(dir)
	step("uninstall", entries, err, "bridge=restored old=removed", "bridge=reference loopback=stranger route=stranger")
	if _, err := os.Lstat(filepath.Join(dir, ".fairlead")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf(".fairlead after uninstall: %v", err)
	}
}

// An installation where nothing was before leaves nothing but the plugins, which are one file that anybody may run.
func TestNew(t *testing.T) {
	v1, _, _ := world(t)
	unix.Umask(0o077)
	dir := filepath.Join(t.TempDir(), "opt/cni/bin")
	must(t, os.Chmod(filepath.Join(v1, "bridge"), 0o4755)) // which is not passed on
	c, err := installFrom(v1, dir, false)
	must(t, err)
	want(t, "install", states(c.Entries), "bridge=added loopback=added old=added route=added")
	all, err := os.ReadDir(dir)
	must(t, err)
	if len(all) != 4 {
		t.Errorf("%v: want four plugins", all)
	}
	one, err := os.Stat(filepath.Join(dir, "bridge"))
	must(t, err)
	for _, e := range all {
		st, err := os.Stat(filepath.Join(dir, e.Name()))
		must(t, err)
		if st.Mode() != 0o755 || !os.SameFile(one, st) {
			t.Errorf("%s: mode %v, the same file as bridge: %v", e.Name(), st.Mode(), os.SameFile(one, st))
		}
	}
	_, v2, _ := world(t)
	_, err = installFrom(v2, dir, false)
	must(t, err)
	if _, err := os.Lstat(filepath.Join(dir, ".fairlead", original)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory for files of the reference, which had none: %v", err)
	}
	for _, path := range []string{dir, filepath.Dir(dir)} {
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o755 {
			t.Errorf("%s: %v, %v", path, st.Mode(), err)
		}
	}
}

// Killed before any of its changes, an install leaves whole programs; the next one completes it, and a rollback goes
// back behind both.
func TestKilled(t *testing.T) {
	nstest.NeedProgram(t, "strace")
	v1, v2, dir := world(t)
	program := nstest.Fairlead(t, "../../..")
	_, err := installFrom(v1, dir, false)
	must(t, err)
	before, after := says(t, dir), "bridge=v2 loopback=v2 route=stranger tap=v2"
	kills := 0
	kill := func(n int) { // strace counts the calls of each thread for itself, and Go has several
		t.Helper()
		cmd := exec.Command("strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=linkat,renameat,unlinkat,mkdirat",
			"-e", "inject=linkat,renameat,unlinkat,mkdirat:signal=KILL:when="+strconv.Itoa(n),
			program, "install", "--from", v2, "--dir", dir)
		cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
		out, err := cmd.CombinedOutput()
		switch {
		case err != nil && len(out) > 0:
			t.Fatalf("kill %d: %v: %s", n, err, out)
		case err != nil:
			kills++
		}
	}
	nstest.Sample(t, 6, func(n int) (there bool) {
		if n > 30 {
			return false
		}
		kill(n)
		for entry := range strings.FieldsSeq(says(t, dir)) {
			if !strings.Contains(before+" "+after, entry) {
				t.Errorf("kill %d: %s", n, entry)
			}
		}
		_, err = installFrom(v2, dir, false)
		must(t, err)
		want(t, "after the next install", says(t, dir), after)
		if _, err := Rollback(dir); err != nil {
			t.Errorf("kill %d: %v", n, err)
		}
		t.Logf("kill %d", n)
		want(t, "after the rollback", says(t, dir), before)

		// A rollback without another install goes back behind the killed one, or behind the one before, or says no.
		_, err = Uninstall(dir)
		must(t, err)
		original := says(t, dir)
		_, err = installFrom(v1, dir, false)
		must(t, err)
		kill(n)
		_, err = Rollback(dir)
		if got := says(t, dir); got != before && (err != nil || got != original) || err != nil &&
			!errors.Is(err, ErrNothingKept) {
			t.Errorf("kill %d: a rollback of it: %v, and %s", n, err, got)
		}
		_, err = installFrom(v1, dir, false)
		must(t, err)
		return true
	})
	if kills == 0 {
		t.Error("no install was killed")
	}
}

// A runtime that calls a plugin all the time never finds it missing or broken, and of two installs at once one is done.
func TestBusy(t *testing.T) {
	v1, v2, dir := world(t)
	_, err := installFrom(v1, dir, false)
	must(t, err)
	stop, called := make(chan struct{}), make(chan error)
	go func() {
		for {
			out, err := exec.Command(filepath.Join(dir, "bridge")).CombinedOutput()
			// The installs are in this process: a fork may have had the file open for writing.
			if err != nil && !errors.Is(err, unix.ETXTBSY) {
				called <- errors.Join(err, errors.New(string(out)))
				return
			}
			select {
			case <-stop:
				called <- nil
				return
			default:
			}
		}
	}()
	for i := range 20 {
		from := []string{v2, v1}[i%2]
		var both sync.WaitGroup
		var done [2]error
		for i := range done {
			both.Go(func() { _, done[i] = installFrom(from, dir, false) })
		}
		both.Wait()
		for _, err := range done {
			if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
				t.Error(err)
			}
		}
		if done[0] != nil && done[1] != nil {
			t.Error("of two installs at once none is done")
		}
	}
	close(stop)
	if err := <-called; err != nil {
		t.Errorf("a plugin that was called meanwhile: %v", err)
	}
	entries, err := Uninstall(dir)
	must(t, err)
	want(t, "uninstall", says(t, dir), "bridge=reference route=stranger")
	want(t, "uninstall", states(entries), "bridge=restored loopback=removed old=removed")
}

// Where others may write, nothing is installed, and the error says who.
//
// This is CVE-2024-33522.
func TestUnsafe(t *testing.T) {
	v1, _, _ := world(t)
	for _, tc := range []struct {
		name string
		make func(dir string) error
		want string // "" is no error
	}{
		{"of root", func(string) error { return nil }, ""},
		{"writable for all", func(dir string) error { return os.Chmod(dir, 0o777) },
			"opt/bin is not safe: every user may write to it (mode 0777)"},
		{"writable for all, with the sticky bit", func(dir string) error { return os.Chmod(dir, 0o777|fs.ModeSticky) },
			"every user may write"},
		{"in a directory for all", func(dir string) error { return os.Chmod(filepath.Dir(dir), 0o777) }, "opt is not safe"},
		{"in a directory for all with the sticky bit",
			func(dir string) error { return os.Chmod(filepath.Dir(dir), 0o777|fs.ModeSticky) }, ""},
		{"for root's group", func(dir string) error { return os.Chmod(dir, 0o775) }, ""},
		{"for another group", func(dir string) error { return errors.Join(os.Chown(dir, 0, 5), os.Chmod(dir, 0o775)) },
			"group 5 may write"},
		{"of the first other user", func(dir string) error { return os.Chown(dir, 1, 0) }, "it belongs to user 1"},
		{"of another user", func(dir string) error { return os.Chown(dir, 5, 0) }, "it belongs to user 5"},
		{"in a directory of another user", func(dir string) error { return os.Chown(filepath.Dir(dir), 5, 0) },
			"it belongs to user 5"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "opt/bin")
			must(t, os.MkdirAll(dir, 0o755))
			if err := tc.make(dir); err != nil {
				nstest.Skip(t, err) // a user namespace has one user
			}
			link := filepath.Join(t.TempDir(), "link")
			must(t, os.Symlink(dir, link))
			for _, path := range []string{dir, link} {
				_, err := installFrom(v1, path, false)
				names, lerr := list(dir)
				must(t, lerr)
				switch {
				case tc.want == "":
					must(t, err)
				case err == nil || !strings.Contains(err.Error(), tc.want) || !errors.As(err, new(*UnsafeError)) || len(names) > 0:
					t.Errorf("%s: %v, want %s; there are %q", path, err, tc.want, names)
				}
			}
		})
	}
	must(t, os.Chmod(filepath.Join(v1, "bridge"), 0o777))
	if _, err := installFrom(v1, t.TempDir(), false); !errors.As(err, new(*UnsafeError)) {
		t.Errorf("of a program that everybody may write to: %v", err)
	}
	must(t, errors.Join(os.Chmod(filepath.Join(v1, "bridge"), 0o755), os.Chmod(v1, 0o777)))
	if _, err := installFrom(v1, t.TempDir(), false); !errors.As(err, new(*UnsafeError)) {
		t.Errorf("from a directory that everybody may write to: %v", err)
	}
}

// The errors of file systems that cannot be written to name the path; what is up to date needs no writing.
func TestReadOnly(t *testing.T) {
	v1, v2, dir := world(t)
	_, err := installFrom(v1, dir, false)
	must(t, err)
	must(t, unix.Mount(dir, dir, "", unix.MS_BIND, ""))
	must(t, unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	defer unix.Unmount(dir, unix.MNT_DETACH)
	var path *fs.PathError
	if _, err := installFrom(v2, dir, false); !errors.Is(err, unix.EROFS) || !errors.As(err, &path) ||
		!strings.HasPrefix(path.Path, dir) {
		t.Errorf("read-only: %v", err)
	}
	_, err = installFrom(v1, dir, false)
	must(t, err)
}

// What is installed has the label of what was there.
func TestLabel(t *testing.T) {
	v1, v2, dir := world(t)
	const wanted = "system_u:object_r:container_runtime_exec_t:s0"
	if err := unix.Setxattr(filepath.Join(dir, "bridge"), selinux, []byte(wanted), 0); err != nil {
		nstest.Skip(t, "set a SELinux label: ", err)
	}
	for _, from := range []string{v1, v2} {
		_, err := installFrom(from, dir, false)
		must(t, err)
		want(t, "label of "+from, string(label(filepath.Join(dir, "loopback"))), wanted)
	}
	_, err := Rollback(dir)
	must(t, err)
	want(t, "after the rollback", string(label(filepath.Join(dir, "bridge"))), wanted)
}

// The plugins are found beside the program, however it is called. A program that is alone is all of them.
func TestFind(t *testing.T) {
	v1, v2, _ := world(t)
	root := t.TempDir()
	program := filepath.Join(root, "bin/fairlead")
	must(t, os.MkdirAll(filepath.Dir(program), 0o755))
	must(t, os.WriteFile(program, nil, 0o755))
	link := filepath.Join(t.TempDir(), "fairlead")
	must(t, os.Symlink(program, link))
	if dir, err := Find(link); err != nil || dir != "" {
		t.Errorf("%q, %v: want none", dir, err)
	}
	alone, err := Single(link, []string{"bridge", "tap"})
	must(t, err)
	want(t, "the program alone", alone.Program, program)
	dir := t.TempDir()
	_, err = Install(alone, dir, false)
	must(t, err)
	want(t, "its plugins", strings.Join(names(t, dir), " "), "bridge tap")
	must(t, os.Chmod(program, 0o777))
	if _, err := Single(link, nil); !errors.As(err, new(*UnsafeError)) {
		t.Errorf("a program that every user may write to: %v", err)
	}
	for _, dir := range []string{"bin", "lib/fairlead/cni", "bin/cni"} { // the last first
		must(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
		must(t, os.Link(filepath.Join(v1, "loopback"), filepath.Join(root, dir, "loopback")))
		found, err := Find(link)
		must(t, err)
		want(t, "plugins", found, filepath.Join(root, dir))
	}
	must(t, os.Link(filepath.Join(v2, "tap"), filepath.Join(root, "bin/cni/tap")))
	if _, err := Directory(filepath.Join(root, "bin/cni")); err == nil ||
		!strings.Contains(err.Error(), "different versions") {
		t.Errorf("plugins of two versions: %v", err)
	}
	if _, err := Directory(t.TempDir()); err == nil || !strings.Contains(err.Error(), "has no plugins") {
		t.Errorf("no plugins: %v", err)
	}
}

// names are the plugins in a directory.
func names(t *testing.T, dir string) []string {
	t.Helper()
	all, err := list(dir)
	must(t, err)
	return all
}

func installFrom(from, dir string, ownOnly bool) (*Change, error) {
	s, err := Directory(from)
	if err != nil {
		return nil, err
	}
	return Install(s, dir, ownOnly)
}

func planFrom(from, dir string, ownOnly bool) (*Change, error) {
	s, err := Directory(from)
	if err != nil {
		return nil, err
	}
	return Plan(s, dir, ownOnly)
}

// After a rollback the reference's plugin is back. What becomes of it then is the administrator's, and a later
// uninstallation puts back no plugin that was not there.
func TestOriginalAfterRollback(t *testing.T) {
	v1, _, dir := world(t)
	_, err := installFrom(v1, dir, false)
	must(t, err)
	_, err = Rollback(dir)
	must(t, err)
	must(t, os.Remove(filepath.Join(dir, "bridge")))
	_, err = installFrom(v1, dir, false)
	must(t, err)
	_, err = Uninstall(dir)
	must(t, err)
	if _, err := os.Lstat(filepath.Join(dir, "bridge")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a plugin of before the rollback is back: %v", err)
	}
}
