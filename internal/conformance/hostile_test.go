package conformance

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// shellPlugin writes a plugin in shell.
func shellPlugin(t *testing.T, name, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\ncd "+filepath.Dir(path)+"\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// fileOf writes a value as a file of JSON.
func fileOf(t *testing.T, value any) string {
	t.Helper()
	b, err := json.Marshal(value)
	file := filepath.Join(t.TempDir(), "file.json")
	if err == nil {
		err = os.WriteFile(file, b, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return file
}

const answersVersion = `echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}'` + "\n"

// What a plugin starts ends with the check, and no call of it is made on the machine, VERSION neither.
func TestNothingStays(t *testing.T) {
	path := shellPlugin(t, "stays", "readlink /proc/self/ns/net >>seen\nsetsid sleep 60 <>alive >/dev/null 2>&1 &\n"+
		answersVersion)
	alive := filepath.Join(filepath.Dir(path), "alive")
	if err := syscall.Mkfifo(alive, 0o600); err != nil {
		t.Fatal(err)
	}
	profile := fileOf(t, Profile{Plugins: map[string]Plugin{"stays": {Kind: Interface}}})
	if ids := failures(run(t, Settings{Plugins: []string{path}, Profile: profile, Only: []string{"V1"}})[0]); len(ids) > 0 {
		t.Errorf("%v failed", ids)
	}

	if f, err := os.OpenFile(alive, os.O_WRONLY|syscall.O_NONBLOCK, 0); !errors.Is(err, syscall.ENXIO) {
		t.Errorf("a process of the plugin goes on: %v, %v", f, err)
	}
	seen, err := os.ReadFile(filepath.Join(filepath.Dir(path), "seen"))
	if own, _ := os.Readlink("/proc/self/ns/net"); err != nil || len(seen) == 0 || strings.Contains(string(seen), own) {
		t.Errorf("the plugin ran in %s on a machine with %s: %v", seen, own, err)
	}
}

// A plugin that hangs at VERSION is one that fails a check.
func TestHangs(t *testing.T) {
	path := shellPlugin(t, "hangs", "exec sleep infinity\n")
	profile := fileOf(t, Profile{Plugins: map[string]Plugin{"hangs": {Kind: Interface}}})
	reports, err := Run(Settings{Plugins: []string{path}, Profile: profile, Only: []string{"V1"}, Limit: 100 * time.Millisecond})
	if err != nil || len(failures(reports[0])) != 1 {
		t.Errorf("%+v, %v", reports, err)
	}
}

// makesInterface is a plugin that makes an interface, and leaves addresses to others.
const makesInterface = `case $CNI_COMMAND in
VERSION) ` + answersVersion + `;;
ADD) nsenter --net=$CNI_NETNS ip link add $CNI_IFNAME type bridge >&2 || exit 1
	echo '{"cniVersion":"1.0.0","interfaces":[{"name":"'$CNI_IFNAME'","sandbox":"'$CNI_NETNS'"}]}';;
esac
`

// A plugin without IPAM is not tested with one, and what a profile says of a plugin whose kind is recognised counts.
func TestRecognisedConf(t *testing.T) {
	path := shellPlugin(t, "bare", makesInterface)
	for _, conf := range []string{"", `{"key":7}`} {
		profile := fileOf(t, Profile{Plugins: map[string]Plugin{"bare": {Conf: json.RawMessage(conf), Layer2: true}}})
		got := run(t, Settings{Plugins: []string{path}, Profile: profile, Only: []string{"V1"}})[0].Subject
		if want := cmp.Or(conf, "{}"); got.Kind != Interface || string(got.Conf) != want || !got.Layer2 {
			t.Errorf("%s with %s, layer2 %v; want interface with %s", got.Kind, got.Conf, got.Layer2, want)
		}
	}
}

// sleeper writes a runtime that starts a process which ends with the test, and then does something else.
func sleeper(t *testing.T, then string) string {
	t.Helper()
	path := shellPlugin(t, then, "sleep infinity &\necho $! >pid\n"+then+"\n")
	t.Cleanup(func() {
		b, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "pid"))
		pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err == nil {
			err = syscall.Kill(pid, syscall.SIGKILL)
		}
		if err != nil {
			t.Error(err)
		}
	})
	return path
}

// What a subject's process, or a command of the profile, holds open or prints without end does not hold up the suite.
func TestHeldUp(t *testing.T) {
	hang := [][]string{{"sleep", "infinity"}}
	tr := &trial{ctx: t.Context(), limit: 100 * time.Millisecond, subject: Subject{Plugin: Plugin{Host: hang}}}
	if err := tr.prepare(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the profile's command: %v", err)
	}

	tr.limit = time.Minute
	c := &container{netns: "/nowhere"}
	tr.subject.Command = []string{sleeper(t, "exit")}
	if a := tr.call("add", c); a.failed != nil {
		t.Errorf("a runtime that leaves a daemon: %s", a)
	}
	tr.limit = 100 * time.Millisecond
	tr.subject.Command = []string{sleeper(t, "wait")}
	if a := tr.call("add", c); !strings.Contains(a.String(), "--timeout") {
		t.Errorf("a runtime that hangs: %s", a)
	}

	var b bounded
	for range 20 {
		if n, err := b.Write(make([]byte, 1<<20)); n != 1<<20 || err != nil {
			t.Fatal(n, err)
		}
	}
	if len(b.kept) != 16<<20 {
		t.Errorf("kept %d bytes", len(b.kept))
	}
}
