package install

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"golang.org/x/sys/unix"
)

// installVar has the test binary install from a directory to another, VERB:FROM:TO, or do another thing to that.
const installVar = "INSTALL_FROM_TO"

func TestMain(m *testing.M) {
	words := strings.Split(os.Getenv(installVar), ":")
	if len(words) != 3 {
		nstest.Main(m)
		return
	}
	if err := doing(words[0], words[1], words[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// doing installs, rolls back or uninstalls.
func doing(verb, from, to string) (err error) {
	switch verb {
	case "install":
		_, err = installFrom(from, to, false)
	case "rollback":
		_, err = Rollback(to)
	case "uninstall":
		_, err = Uninstall(to)
	}
	return err
}

// TestBackFaults lets calls of a rollback and of an uninstall fail. One that succeeds has done all. One that fails says
// why, and the next one does the rest.
func TestBackFaults(t *testing.T) {
	v1, v2, dir := world(t)
	faults, original := nstest.Faults(), says(t, dir)
	for verb, calls := range map[string][]string{"rollback": {"openat", "renameat", "unlinkat", "fsync"},
		"uninstall": {"openat", "renameat", "unlinkat", "fsync"}} {
		for i, call := range calls {
			t.Run(verb+" "+call, func(t *testing.T) {
				nstest.Sample(t, 6, func(n int) bool {
					errno := faults[(i+n)%len(faults)]
					what := fmt.Sprintf("a %s whose %s number %d is %s", verb, call, n, unix.ErrnoName(errno))
					must(t, doing("install", v1, dir))
					after := map[string]string{"rollback": says(t, dir), "uninstall": original}[verb]
					must(t, doing("install", v2, dir))
					fired, said, err := faulty(verb, v2, dir, call, n, errno)
					if err != nil && !strings.Contains(said, errno.Error()) {
						t.Errorf("%s says %q", what, said)
					}
					if err != nil {
						if err := doing(verb, v2, dir); err != nil && !errors.Is(err, ErrNothingKept) {
							t.Errorf("after %s: %v", what, err)
						}
					}
					want(t, what, says(t, dir), after)
					must(t, doing("uninstall", v2, dir))
					want(t, "the uninstall after "+what, says(t, dir), original)
					return fired
				})
			})
		}
	}
}

// TestFaults lets calls of an install fail that change something. Each plugin is the earlier or the new one then, and a
// whole program. An install that fails says why, and the next one succeeds. What it kept leads back.
func TestFaults(t *testing.T) {
	v1, v2, dir := world(t)
	_, err := installFrom(v1, dir, false)
	must(t, err)
	before, after := says(t, dir), "bridge=v2 loopback=v2 route=stranger tap=v2"
	faults := nstest.Faults()
	for i, call := range []string{"openat", "mkdirat", "linkat", "renameat", "unlinkat", "copy_file_range", "fsync", "fchmod", "write"} {
		t.Run(call, func(t *testing.T) {
			nstest.Sample(t, 6, func(n int) bool {
				errno := faults[(i+n)%len(faults)]
				what := fmt.Sprintf("an install whose %s number %d is %s", call, n, unix.ErrnoName(errno))
				fired, said, err := faulty("install", v2, dir, call, n, errno)
				for entry := range strings.FieldsSeq(says(t, dir)) {
					if !strings.Contains(before+" "+after, entry) {
						t.Errorf("%s: %s", what, entry)
					}
				}
				if err == nil {
					want(t, what, says(t, dir), after)
				} else if !strings.Contains(said, errno.Error()) {
					t.Errorf("%s says %q", what, said)
				}
				_, err = installFrom(v2, dir, false)
				must(t, err)
				want(t, "the install after "+what, says(t, dir), after)
				_, err = Rollback(dir)
				must(t, err)
				want(t, "the rollback after "+what, says(t, dir), before)
				return fired
			})
		})
	}
}

// faulty does a thing, and has the nth call of a name that changes a file fail.
func faulty(verb, from, to, call string, n int, errno unix.Errno) (fired bool, said string, err error) {
	exe, err := os.Executable()
	if err != nil {
		return false, "", err
	}
	cmd, count := exec.Command(exe), 0
	cmd.Env = append(os.Environ(), installVar+"="+verb+":"+from+":"+to)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err = nstest.WithFaults(cmd, func(s nstest.Syscall) unix.Errno {
		if (call == "openat" || call == "write") && !s.Room {
			return 0
		}
		if count++; count != n {
			return 0
		}
		fired = true
		return errno
	}, call)
	return fired, stderr.String(), err
}

// TestOddRecord: where the record of the last install is torn, empty or garbage, an install and a rollback name the file
// and say what to do. The plugins stay, and uninstalling works.
func TestOddRecord(t *testing.T) {
	v1, v2, dir := world(t)
	for _, content := range []string{"", `{"added":["br`, "\x00\xff", `{"added":7}`, "[]"} {
		_, err := installFrom(v1, dir, false)
		must(t, err)
		before := says(t, dir)
		file := filepath.Join(dir, ".fairlead", record)
		must(t, os.WriteFile(file, []byte(content), 0o600))

		_, installing := installFrom(v2, dir, false)
		_, rollingBack := Rollback(dir)
		for verb, err := range map[string]error{"install": installing, "rollback": rollingBack} {
			if err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "remove the file") {
				t.Errorf("%s with the record %q: %v", verb, content, err)
			}
		}
		want(t, "afterwards", says(t, dir), before)

		must(t, os.Remove(file))
		_, err = installFrom(v2, dir, false)
		must(t, err)
		_, err = Uninstall(dir)
		must(t, err)
	}
}

// What cannot be done ends an install and a rollback with an error that names the file. Before anything is kept, nothing
// is replaced.
func TestObstacles(t *testing.T) {
	names := func(what string, err error, path string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want one that names %s", what, err, path)
		}
	}
	v1, _, dir := world(t)
	before := says(t, dir)

	link, nothing := filepath.Join(t.TempDir(), "link"), filepath.Join(t.TempDir(), "nothing")
	must(t, os.Symlink(nothing, link))
	_, err := Rollback(link)
	names("a rollback in a link to nothing", err, nothing)

	kept := filepath.Join(dir, ".fairlead", original)
	must(t, os.Mkdir(filepath.Dir(kept), 0o700))
	must(t, os.WriteFile(kept, nil, 0o600))
	_, err = installFrom(v1, dir, false)
	names("where no original can be kept", err, kept)
	want(t, "where no original can be kept", says(t, dir), before)

	must(t, os.Remove(kept))
	must(t, os.MkdirAll(filepath.Join(kept, "bridge", "theirs"), 0o700))
	_, err = installFrom(v1, dir, false)
	names("where the original cannot be kept", err, filepath.Join(kept, "bridge"))
	want(t, "where the original cannot be kept", says(t, dir), before)

	must(t, os.RemoveAll(kept))
	_, err = installFrom(v1, dir, false)
	must(t, err)
	kept = filepath.Join(kept, "bridge")
	must(t, os.Remove(kept))
	must(t, os.MkdirAll(filepath.Join(kept, "theirs"), 0o700))
	_, err = Rollback(dir)
	names("a rollback that cannot remove the original", err, kept)
}

// Of a directory, the plugins of Fairlead are installed: neither its two programs nor what others put there. No file stays
// open.
func TestDirectory(t *testing.T) {
	program := goProgram(t, module+"/cmd/cni", "v1")
	from := directoryOf(t, program, "bridge", "cni", "fairlead")
	must(t, os.WriteFile(filepath.Join(from, "route"), []byte("#!/bin/sh\n"), 0o755))
	files := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(all)
	}
	before := files()
	s, err := Directory(from)
	must(t, err)
	want(t, "the plugins", strings.Join(s.Names, " "), "bridge")
	to := filepath.Join(t.TempDir(), "bin")
	for range 2 {
		_, err = installFrom(from, to, false)
		must(t, err)
	}
	_, err = Uninstall(to)
	must(t, err)
	if after := files(); after != before {
		t.Errorf("%d files are open, %d before", after, before)
	}
}

// A directory that cannot be opened was not synced.
func TestSyncDir(t *testing.T) {
	dir := t.TempDir()
	if err := syncDir(dir); err != nil {
		t.Error(err)
	}
	if err := syncDir(filepath.Join(dir, "gone")); err == nil {
		t.Error("a directory that does not exist was synced")
	}
}
