package daemon_test

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/dhcp/rpc"
	"github.com/fairlead-cni/fairlead/internal/nstest"
)

const reference = "/usr/lib/cni/"

// The reference's plugins are served by our daemon.
func TestReferencePlugin(t *testing.T) {
	nstest.NeedProgram(t, reference+"bridge")
	l := newLAN(t)
	srv := l.dnsmasq(t, "--dhcp-option=option:router,10.9.0.254",
		"--dhcp-option=121,172.16.4.0/22,10.9.0.3,0.0.0.0/0,10.9.0.254")
	startDaemon(t)
	a := newAttachment(t, "c1", overBridge)
	a.program, a.version = reference+"bridge", "1.0.0"
	a.must(t, "ADD")
	if out := nstest.RunIn(t, a.netns, "ip", "addr", "show", "eth0"); !strings.Contains(out, a.ip(t)) {
		t.Errorf("no %s on\n%s", a.ip(t), out)
	}
	var routes []string
	for _, r := range a.result.Routes {
		routes = append(routes, r.Dst.String()+" "+r.GW.String())
	}
	if got := strings.Join(routes, ", "); got != "172.16.4.0/22 10.9.0.3, 0.0.0.0/0 10.9.0.254" {
		t.Errorf("routes %s in %s", got, a.raw)
	}
	a.must(t, "CHECK")
	a.must(t, "DEL")
	a.must(t, "DEL")
	if len(entries(t)) != 0 || len(files(t)) != 0 {
		t.Errorf("after DEL the daemon keeps %+v", entries(t))
	}
	if strings.Contains(srv.text(), "DHCPRELEASE") { // it deletes the link first: there is nothing to send it over
		t.Error("a RELEASE where there was no link")
	}

	// Macvlan gives the address back before its link goes.
	m := newAttachment(t, "c2", `"type":"macvlan","master":"cni0","ipam":{"type":"dhcp"}`)
	m.program, m.version = reference+"macvlan", "1.0.0"
	m.must(t, "ADD")
	m.must(t, "CHECK")
	m.must(t, "DEL")
	srv.says(t, "DHCPRELEASE", 1)

	// What it refuses it says.
	b := newAttachment(t, "c3", `"type":"bridge","bridge":"cni0","ipam":{"type":"dhcp","provide":[{"option":"nonsense","value":"x"}]}`)
	b.program, b.version = reference+"bridge", "1.0.0"
	if err := b.call(t, "ADD"); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("a bad option: %v", err)
	}
}

// Our plugin is served by the reference's daemon.
func TestReferenceDaemon(t *testing.T) {
	nstest.NeedProgram(t, reference+"bridge")
	l := newLAN(t)
	srv := l.dnsmasq(t, "--dhcp-option=option:router,10.9.0.254")
	startReference(t)
	a := newAttachment(t, "c1", `"type":"bridge","bridge":"cni0","ipam":{"type":"dhcp","routes":[{"dst":"0.0.0.0/0"},{"dst":"10.3.0.0/16"}]}`)
	a.must(t, "STATUS")
	a.must(t, "ADD")
	if len(a.result.Routes) != 2 || a.result.Routes[0].GW.String() != "10.9.0.254" ||
		a.result.Routes[1].GW.String() != "10.9.0.254" {
		t.Errorf("result %s", a.raw)
	}
	if out := nstest.RunIn(t, a.netns, "ip", "route"); strings.Count(out, "via 10.9.0.254 dev eth0") != 2 {
		t.Errorf("the routes are\n%s", out)
	}
	if out := nstest.RunIn(t, a.netns, "ip", "addr", "show", "eth0"); !strings.Contains(out, a.ip(t)) {
		t.Errorf("no %s on\n%s", a.ip(t), out)
	}
	a.must(t, "CHECK")
	a.must(t, "DEL")
	srv.says(t, "DHCPRELEASE", 1)
	a.must(t, "DEL")

	// To be asked for a lease that it has lost it hangs; we do not.
	b := newAttachment(t, "c2", overBridge)
	b.must(t, "ADD")
	nstest.RunIn(t, b.netns, "ip", "link", "del", "eth0")
	b.call(t, "CHECK")
	b.must(t, "DEL")
}

func startReference(t *testing.T) *process {
	t.Helper()
	os.Remove(rpc.DefaultSocket) // of a killed one: it refuses to start
	d := start(t, exec.Command(reference+"dhcp", "daemon"))
	awaitSocket(t, rpc.DefaultSocket)
	return d
}

// awaitSocket waits until there is a socket.
func awaitSocket(t *testing.T, path string) {
	t.Helper()
	late := nstest.Context(t).Done()
	tick := time.NewTicker(10 * time.Millisecond) // another program's socket: there is nothing to wait on
	defer tick.Stop()
	for {
		if _, err := os.Stat(path); err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("no %s", path)
		}
	}
}

// A lease of the reference's daemon is ours when it is replaced: the server knows the container by the same name.
func TestReplacedReference(t *testing.T) {
	nstest.NeedProgram(t, reference+"bridge")
	l := newLAN(t)
	l.dnsmasq(t)
	d := startReference(t)
	a := newAttachment(t, "c1", overBridge)
	a.program, a.version = reference+"bridge", "1.0.0"
	a.must(t, "ADD")
	was := a.ip(t)
	d.end(syscall.SIGKILL)
	startDaemon(t)
	a.must(t, "CHECK") // an Allocate, to a daemon that has not heard of it
	if list := entries(t); len(list) != 1 || list[0].Lease.Addresses[0].Prefix.String() != was {
		t.Errorf("the daemon keeps %+v, want %s", list, was)
	}
}
