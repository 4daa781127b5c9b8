package cli

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"golang.org/x/sys/unix"
)

// A key of the terminal reaches the command once, for it stays in the terminal's foreground; and the
// terminal is the command's to read.
func TestTerminal(t *testing.T) {
	fairlead := program(t)
	conf := t.TempDir()
	list := `{"cniVersion": "1.0.0", "name": "lan", "plugins": [{"type": "bridge", "bridge": "lan0"}]}`
	if err := os.WriteFile(filepath.Join(conf, "lan.conflist"), []byte(list), 0o644); err != nil {
		t.Fatal(err)
	}
	master, tty := openTerminal(t)
	cmd := exec.Command("env", "--default-signal", fairlead, "run", "--net", "lan", "--", "sh", "-c", `
		n=0
		trap 'n=$((n+1))' INT
		echo ready
		until read word; do :; done
		trap 'echo heard $word $n; exit 0' USR1
		kill -USR1 $PPID # what was sent before it has been forwarded when this comes back
		while :; do sleep 1000 & wait $!; done`)
	cmd.Env = append(os.Environ(), "NETCONFPATH="+conf, "CNI_PATH=/usr/lib/cni", "NO_COLOR=1")
	cmd.Stdin, cmd.Stderr = tty, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out := bufio.NewScanner(stdout)
	if !out.Scan() || out.Text() != "ready" {
		t.Fatalf("%q, want ready", out.Text())
	}
	if _, err := master.WriteString("\x03word\n"); err != nil {
		t.Fatal(err)
	}
	if !out.Scan() || out.Text() != "heard word 1" {
		t.Errorf("%q, want one interrupt", out.Text())
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// On a terminal a new network is asked about, but for what flags say.
func TestNewAsks(t *testing.T) {
	master, tty := openTerminal(t)
	if _, err := master.WriteString("none\nbr9\n10.5.0.0/24\ny\ny\n"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // a question more would wait for ever
	defer cancel()
	cmd := exec.CommandContext(ctx, program(t), "net", "new", "lan", "-", "--isolated=false")
	cmd.Env = append(os.Environ(), "NETCONFPATH="+t.TempDir())
	cmd.Stdin, cmd.Stderr = tty, tty
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"bridge": "br9"`, `"subnet": "10.5.0.0/24"`, `"subnet": "fd`, `{"type": "firewall"}`, `"type": "alias"`} {
		if !strings.Contains(string(out), want) {
			t.Errorf("lacks %s:\n%s", want, out)
		}
	}
}

// Colours are for terminals whose user has not said no.
func TestColour(t *testing.T) {
	_, tty := openTerminal(t)
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, c := range []struct {
		to            *os.File
		noColor, term string
		want          bool
	}{
		{tty, "", "xterm", true},
		{tty, "1", "xterm", false},
		{tty, "", "dumb", false},
		{file, "", "xterm", false},
	} {
		t.Setenv("NO_COLOR", c.noColor)
		t.Setenv("TERM", c.term)
		text := (&app.App{}).Style(c.to).Good("ok")
		if strings.Contains(string(text), "\x1b[") != c.want {
			t.Errorf("NO_COLOR=%s TERM=%s: %q", c.noColor, c.term, text)
		}
	}
}

// openTerminal is a pseudo-terminal.
func openTerminal(t *testing.T) (master, tty *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close() })
	return master, tty
}

// Who waits at a terminal is told so after a second; a program that reads is not.
func TestProgress(t *testing.T) {
	fairlead, conf, bin := program(t), t.TempDir(), t.TempDir()
	for name, text := range map[string]string{
		conf + "/slow.conflist": `{"cniVersion": "1.1.0", "name": "slow", "plugins": [{"type": "slow"}]}`,
		bin + "/slow":           "#!/bin/sh\nsleep 2\n" + `echo '{"cniVersion": "1.1.0", "supportedVersions": ["1.1.0"]}'` + "\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	master, tty := openTerminal(t)
	run := func(stderr *os.File) {
		cmd := exec.Command(fairlead, "status", "slow")
		cmd.Env = append(os.Environ(), "NETCONFPATH="+conf, "CNI_PATH="+bin)
		cmd.Stderr = stderr
		if out, err := cmd.Output(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		tty.WriteString("end of slow\n")
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	run(tty)
	run(file)
	in := bufio.NewScanner(master)
	said := ""
	for in.Scan() && !strings.HasPrefix(in.Text(), "end of") {
		said += in.Text()
	}
	if !strings.Contains(said, "fairlead: status is still running, since ") {
		t.Errorf("a terminal is told %q", said)
	}
	if text, _ := os.ReadFile(file.Name()); strings.Contains(string(text), "still at work") {
		t.Errorf("a file is told %q", text)
	}
	if !in.Scan() || in.Text() != "end of slow" {
		t.Errorf("%q", in.Text())
	}
}
