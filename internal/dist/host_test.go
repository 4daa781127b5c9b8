package dist

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// A host is a throw-away one that systemd boots in namespaces of its own, with what `make install` puts there.
type host struct {
	t       *testing.T
	dir     string // upper is what is changed of the machine's files
	keeper  int    // a process in the mount namespace that outlives a shutdown
	machine *exec.Cmd
	off     chan error // what it ends with
	console *bytes.Buffer
	pid     int // systemd's
}

// newHost makes a host that is off. All its cgroups are below one, and gone at the end.
func newHost(t *testing.T) *host {
	t.Helper()
	nstest.NeedRoot(t, "systemd as the first process")
	nstest.NeedProgram(t, "/lib/systemd/systemd", "unshare", "nsenter")
	h := &host{t: t, dir: t.TempDir()}
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-euc", `
		mount -t tmpfs host "$0"
		mkdir "$0/cgroups" "$0/upper"
		mount -t cgroup2 cgroups "$0/cgroups"
		group=cgroups/fairlead-$$
		mkdir "$0/$group"
		ln -s "$group" "$0/cgroup"
		echo up
		cat # until the test ends, or is killed
		n=0
		until find "$0/$group" -depth -type d -exec rmdir {} + 2>"$0/left"; do
			find "$0/$group" -name cgroup.procs -exec cat {} + 2>/dev/null | xargs -r kill -9 2>/dev/null || true
			n=$((n+1))
			[ $n -lt 50 ] || { cat "$0/left"; exit 1; }
			sleep 0.1
		done`, h.dir)
	end, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if h.machine != nil {
			h.kill()
		}
		end.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the end of the host: %v", err)
		}
	})
	if _, err := io.ReadFull(out, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	h.keeper = cmd.Process.Pid
	return h
}

// put lays the files of a directory over those of the host while it is off.
func (h *host) put(dir string) {
	h.t.Helper()
	run(h.t, "cp", "-a", "--remove-destination", dir+"/.", h.path(""))
}

// path is where the host's file is while the host is off.
func (h *host) path(file string) string {
	return filepath.Join(fmt.Sprintf("/proc/%d/root", h.keeper), h.dir, "upper", file)
}

// boot waits until systemd has done all that it does at a boot.
func (h *host) boot() {
	h.t.Helper()
	script, err := filepath.Abs("testdata/boot.sh")
	if err != nil {
		h.t.Fatal(err)
	}
	h.console = new(bytes.Buffer)
	h.machine = exec.Command("nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", h.keeper), "sh", "-euc", `
		echo $$ >"$0/cgroup/cgroup.procs"
		exec unshare --pid --mount --net --uts --ipc --cgroup --fork --kill-child sh "$1" "$0"`, h.dir, script)
	h.machine.Stdout, h.machine.Stderr = h.console, h.console
	if err := h.machine.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.off = make(chan error, 1)
	go func(cmd *exec.Cmd) { h.off <- cmd.Wait() }(h.machine)
	timeout := nstest.Context(h.t).Done()
	for h.pid = 0; ; {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", h.machine.Process.Pid))
		if err == nil {
			fmt.Sscan(string(b), &h.pid)
		}
		if h.pid != 0 {
			if _, err := os.Stat(fmt.Sprintf("/proc/%d/root/run/systemd/private", h.pid)); err == nil {
				break
			}
		}
		select {
		case err := <-h.off:
			h.machine = nil
			h.t.Fatalf("systemd does not come up: %v\n%s", err, h.console.Bytes())
		case <-timeout:
			h.kill()
			h.t.Fatalf("systemd does not come up:\n%s", h.console.Bytes())
		case <-time.After(20 * time.Millisecond):
		}
	}
	if out, err := h.try("systemctl is-system-running --wait"); err != nil {
		h.t.Errorf("%v: %s\n%s\n%s\n%s", err, out, h.sh("systemctl --failed --no-legend; systemctl list-jobs"), h.journal(),
			h.console.Bytes())
	}
}

// shutdown has systemd stop everything.
func (h *host) shutdown() {
	h.t.Helper()
	h.sh("systemctl poweroff")
	select {
	case <-h.off: // in a namespace, a first process that powers off ends by a signal
		h.machine = nil
	case <-nstest.Context(h.t).Done():
		h.kill()
		h.t.Errorf("it does not shut down:\n%s", h.console.Bytes())
	}
}

func (h *host) kill() {
	if h.pid == 0 || syscall.Kill(h.pid, syscall.SIGKILL) != nil { // the first process takes all others with it
		h.machine.Process.Kill()
	}
	<-h.off
	h.machine = nil
}

// try runs a shell script on the host that runs.
func (h *host) try(script string) (string, error) {
	ctx, cancel := context.WithDeadline(context.Background(), nstest.Deadline(h.t)) // also when the test is over
	defer cancel()
	cmd := exec.CommandContext(ctx, "nsenter", fmt.Sprintf("--target=%d", h.pid), "--all", "env", "-i",
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "sh", "-euc", script)
	cmd.Dir = "/"
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// on is the host in a subtest.
func (h *host) on(t *testing.T) *host {
	in := *h
	in.t = t
	return &in
}

// sh is try of what has to succeed.
func (h *host) sh(script string) string {
	h.t.Helper()
	out, err := h.try(script)
	if err != nil {
		h.t.Fatalf("%s: %v\n%s\n%s", script, err, out, h.journal())
	}
	return out
}

// until runs a script again and again until it succeeds.
func (h *host) until(script string) {
	h.t.Helper()
	h.sh("end=$(($(date +%s) + 20)); until sh -euc '" + strings.ReplaceAll(script, "'", `'\''`) +
		"' >/tmp/until 2>&1; do [ $(date +%s) -lt $end ] || { cat /tmp/until; exit 1; }; sleep 0.1; done")
}

func (h *host) journal() string {
	out, err := h.try("journalctl -b --no-pager -q -n 40")
	if err != nil {
		return err.Error()
	}
	return out
}
