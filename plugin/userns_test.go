package plugin_test

import (
	"bufio"
	"fmt"
	"os/exec"
	"strconv"
	"testing"
)

// A plugin in a user namespace, as of a rootless runtime that has the host's network, may enter its container and not
// the host's namespace again.
//
// clause: P8 P10 P12
func TestUserNamespace(t *testing.T) {
	cmd := exec.Command("unshare", "--user", "--map-root-user", "--net", "sh", "-c", "echo there; read end")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); cmd.Wait() })
	if said, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("no user namespace can be made: %q, %v", said, err)
	}
	pid := strconv.Itoa(cmd.Process.Pid)
	enter := []string{"nsenter", "--target", pid, "--user", "--preserve-credentials"}
	r := newRunner(t, chain{name: "userns", plugins: []string{`"type":"loopback"`}})
	a := &attachment{id: "c", netns: fmt.Sprintf("/proc/%s/ns/net", pid)}
	up := func() bool {
		return exec.Command(enter[0], append(enter[1:], "--net", "ping", "-c1", "-W1", "127.0.0.1")...).Run() == nil
	}
	r.must("add", r.add(a, enter...))
	if !up() {
		t.Error("ADD left lo down")
	}
	_, err = r.run(0, "CHECK", a, "", enter...)
	r.must("check", err)
	_, err = r.run(0, "DEL", a, "", enter...)
	r.must("del", err)
	if up() {
		t.Error("DEL left lo up")
	}
}
