package nstest

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const busConf = `<!DOCTYPE busconfig PUBLIC
"-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
"http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path=BUS</listen><auth>EXTERNAL</auth>
<policy context="default">
<allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy>
</busconfig>
`

// StartFirewalld runs a real firewalld in the network namespace with that path, on a bus of its own, which programs of
// the test find by the environment. It returns when firewalld answers. Stop ends it before the end of the test.
func StartFirewalld(t testing.TB, path string) (stop func()) {
	t.Helper()
	NeedProgram(t, "dbus-daemon", "firewalld")
	dir := t.TempDir()
	bus, conf, log := filepath.Join(dir, "bus"), filepath.Join(dir, "bus.conf"), filepath.Join(dir, "log")
	if err := os.WriteFile(conf, []byte(strings.ReplaceAll(busConf, "BUS", bus)), 0o644); err != nil {
		t.Fatal(err)
	}
	etc := filepath.Join(dir, "etc") // an ordinary user cannot read the host's
	for _, needed := range []string{etc, "/run/firewalld"} {
		if err := os.MkdirAll(needed, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+bus)
	startDaemon(t, path, true, "dbus-daemon", "--config-file="+conf, "--nofork", "--nopidfile", "--print-address=1")
	stop = startDaemon(t, path, false, "firewalld", "--nofork", "--nopid", "--system-config="+etc,
		"--log-target=file", "--log-file="+log)
	for end := Deadline(t); ; { // each question takes a good while itself
		out, err := exec.Command("firewall-cmd", "--state").CombinedOutput()
		if err == nil {
			return stop
		}
		if time.Now().After(end) {
			said, _ := os.ReadFile(log)
			t.Fatalf("firewalld does not come up: %s: %s", out, said)
		}
	}
}

// startDaemon runs a program in a network namespace until stop or the end of the test. If it prints a line when it is
// ready, it is awaited.
func startDaemon(t testing.TB, path string, prints bool, args ...string) (stop func()) {
	t.Helper()
	cmd := exec.Command("nsenter", append([]string{"--net=" + path, "--"}, args...)...)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if prints {
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Fatalf("%q: %v, %v", args, line, err)
		}
	}
	stopped := false
	stop = func() {
		if !stopped {
			cmd.Process.Kill()
			cmd.Wait()
		}
		stopped = true
	}
	t.Cleanup(stop)
	return stop
}
