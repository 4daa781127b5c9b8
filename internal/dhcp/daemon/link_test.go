package daemon_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"golang.org/x/sys/unix"
)

// A macvlan gets its address from the link that it stands on, and gives it back before it goes.
func TestMacvlan(t *testing.T) {
	l := newLAN(t)
	srv := l.dnsmasq(t)
	nstest.Run(t, "sh", "-ec",
		"ip link add ens3 type veth peer name port3; ip link set port3 master cni0 up; ip link set ens3 up")
	t.Cleanup(func() { nstest.Run(t, "ip", "link", "del", "ens3") })
	startDaemon(t)
	for _, mode := range []string{"bridge", "private"} {
		a := newAttachment(t, mode, `"type":"macvlan","master":"ens3","mode":"`+mode+`","ipam":{"type":"dhcp"}`)
		a.must(t, "ADD")
		a.must(t, "CHECK")
		was := strings.Count(srv.text(), "DHCPRELEASE")
		a.must(t, "DEL")
		srv.says(t, "DHCPRELEASE", was+1)
	}
	if list := entries(t); len(list) != 0 {
		t.Errorf("it keeps %+v", list)
	}
}

// A link that goes down and comes back may be plugged into another network, so the server is asked.
func TestDownAndUp(t *testing.T) {
	l := newLAN(t)
	srv := l.dnsmasq(t)
	d := startDaemon(t)
	a := newAttachment(t, "c1", overBridge)
	a.must(t, "ADD")
	asked := strings.Count(srv.text(), "DHCPREQUEST")
	nstest.RunIn(t, a.netns, "ip", "link", "set", "eth0", "down")
	nstest.RunIn(t, a.netns, "ip", "link", "set", "eth0", "up")
	srv.says(t, "DHCPREQUEST", asked+1)
	srv.says(t, "DHCPACK", asked+1)

	// The same where the cable goes, that is the other end.
	nstest.Run(t, "sh", "-ec",
		"p=$(ip -br link show master cni0 | sed -n 's/^\\(veth[^@ ]*\\).*/\\1/p'); ip link set $p down; ip link set $p up")
	srv.says(t, "DHCPACK", asked+2)

	// Another network: the lease ends, and its addresses go.
	srv.end(syscall.SIGKILL)
	srv = l.dnsmasq(t, "--dhcp-range=10.9.0.100,10.9.0.150,255.255.255.0,2m", "--dhcp-authoritative")
	nstest.RunIn(t, a.netns, "ip", "link", "set", "eth0", "down")
	nstest.RunIn(t, a.netns, "ip", "link", "set", "eth0", "up")
	d.says(t, "a lease has changed", 1)
	if out := nstest.RunIn(t, a.netns, "ip", "addr"); strings.Contains(out, a.ip(t)) ||
		!strings.Contains(out, "inet 10.9.0.1") {
		t.Errorf("instead of %s there is\n%s", a.ip(t), out)
	}
	a.must(t, "DEL")
	srv.says(t, "DHCPRELEASE", 1)
}

// A namespace is not kept alive, and with it goes its lease; so with a link.
func TestGone(t *testing.T) {
	l := newLAN(t)
	l.dnsmasq(t)
	d := startDaemon(t)
	a, b := newAttachment(t, "c1", overBridge), newAttachment(t, "c2", overBridge)
	a.must(t, "ADD")
	b.must(t, "ADD")
	if err := nstest.RemoveNS(a.netns); err != nil {
		t.Fatal(err)
	}
	d.says(t, "a lease is dropped", 1) // by the kernel's word alone: nothing is due for a minute
	host, err := kernel.Open("")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	if err := rtnl.Await(host, t.Context(), nstest.Patience(t), []uint{rtnl.LinkEvents}, func() (bool, error) {
		return strings.Count(nstest.Run(t, "ip", "-br", "link", "show", "master", "cni0"), "veth") == 1, nil
	}); err != nil {
		t.Errorf("the namespace lives on: %v", err)
	}
	nstest.RunIn(t, b.netns, "ip", "link", "del", "eth0")
	d.says(t, "a lease is dropped", 2)
	if list := entries(t); len(list) != 0 || len(files(t)) != 0 {
		t.Errorf("it keeps %+v", list)
	}
	a.must(t, "DEL")
	b.must(t, "DEL")
}

// What went while there was no daemon its successor drops; another namespace at the same path is not the one.
func TestGoneMeanwhile(t *testing.T) {
	l := newLAN(t)
	srv := l.dnsmasq(t)
	d := startDaemon(t)
	gone, linkless, replaced, stays := newAttachment(t, "gone", overBridge), newAttachment(t, "linkless",
		overBridge), newAttachment(t, "replaced", overBridge), newAttachment(t, "stays", overBridge)
	for _, a := range []*attachment{gone, linkless, replaced, stays} {
		a.must(t, "ADD")
	}
	d.end(syscall.SIGKILL)
	if err := nstest.RemoveNS(gone.netns); err != nil {
		t.Fatal(err)
	}
	nstest.RunIn(t, linkless.netns, "ip", "link", "del", "eth0")
	if err := nstest.RemoveNS(replaced.netns); err != nil {
		t.Fatal(err)
	}
	if err := nstest.MakeNS(replaced.netns); err != nil {
		t.Fatal(err)
	}
	nstest.RunIn(t, replaced.netns, "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "other")
	acks := strings.Count(srv.text(), "DHCPACK")
	d = startDaemon(t)
	srv.says(t, "DHCPACK", acks+1)
	d.says(t, "a lease is dropped", 3)
	if list := entries(t); len(list) != 1 || list[0].Owner.ContainerID != "stays" || len(files(t)) != 1 {
		t.Errorf("it keeps %+v", list)
	}
	if out := nstest.RunIn(t, replaced.netns, "ip", "-br", "link", "show", "eth0"); !strings.Contains(out, "DOWN") {
		t.Errorf("it touched another one's link:\n%s", out)
	}
	stays.must(t, "CHECK")
	stays.must(t, "DEL")
}

// A namespace that this daemon cannot see, because its mounts are others, is not taken for dead.
func TestHidden(t *testing.T) {
	l := newLAN(t)
	srv := l.dnsmasq(t)
	d := startDaemon(t)
	a := newAttachment(t, "c1", overBridge)
	a.must(t, "ADD")
	d.end(syscall.SIGKILL)
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "dhcp")
	if err := os.Symlink(self, program); err != nil {
		t.Fatal(err)
	}
	for _, hide := range []string{"umount " + a.netns, "umount -R /run/netns || true; mount --bind /mnt /run"} {
		prefix := ""
		if strings.Contains(hide, "/mnt") {
			prefix = " -socketpath " + filepath.Join(t.TempDir(), "s")
		}
		d = start(t, exec.Command("unshare", "-m", "sh", "-c", hide+"; exec "+program+" daemon"+prefix))
		d.says(t, "not visible to the daemon", 1)
		d.end(syscall.SIGKILL)
		if len(files(t)) != 1 {
			t.Fatal("the lease is forgotten")
		}
	}
	startDaemon(t)
	a.must(t, "CHECK")
	a.must(t, "DEL")
	srv.says(t, "DHCPRELEASE", 1)
}

// The daemon holds no descriptor and no thread of a container's namespace between its doings.
func TestHoldsNothing(t *testing.T) {
	l := newLAN(t)
	l.dnsmasq(t)
	d := startDaemon(t)
	count := func() (fds, threads int) {
		dir := fmt.Sprintf("/proc/%d", d.cmd.Process.Pid)
		f, err := os.ReadDir(dir + "/fd")
		if err != nil {
			t.Fatal(err)
		}
		tasks, err := os.ReadDir(dir + "/task")
		if err != nil {
			t.Fatal(err)
		}
		var own unix.Stat_t
		if err := unix.Stat("/proc/thread-self/ns/net", &own); err != nil {
			t.Fatal(err)
		}
		for _, task := range tasks {
			var st unix.Stat_t
			if unix.Stat(filepath.Join(dir, "task", task.Name(), "ns/net"), &st) == nil && st.Ino != own.Ino {
				threads++
			}
		}
		return len(f), threads
	}
	const n = 8
	var as []*attachment
	for i := range n {
		a := newAttachment(t, fmt.Sprint("c", i), overBridge)
		a.must(t, "ADD")
		as = append(as, a)
	}
	fds, threads := count()
	// a packet socket takes a while to close
	for late := nstest.Deadline(t); (threads > 0 || fds > 20) && time.Now().Before(late); fds, threads = count() {
	}
	if threads > 0 || fds > 20 {
		t.Errorf("with %d leases: %d descriptors, %d threads in other namespaces", n, fds, threads)
	}
	for _, a := range as {
		if err := nstest.RemoveNS(a.netns); err != nil {
			t.Fatal(err)
		}
	}
	d.says(t, "a lease is dropped", n)
}

// The links of an ipvlan have one MAC, so servers broadcast their answers, and tell the containers apart by their
// identifiers.
func TestIPVLAN(t *testing.T) {
	nstest.Need(t, "ipvlan")
	l := newLAN(t)
	srv := l.dnsmasq(t)
	nstest.Run(t, "sh", "-ec",
		"ip link add ens3 type veth peer name port3; ip link set port3 master cni0 up; ip link set ens3 up")
	t.Cleanup(func() { nstest.Run(t, "ip", "link", "del", "ens3") })
	startDaemon(t)
	const conf = `"type":"ipvlan","master":"ens3","ipam":{"type":"dhcp"}`
	a, b := newAttachment(t, "c1", conf), newAttachment(t, "c2", conf)
	a.must(t, "ADD")
	b.must(t, "ADD")
	if a.ip(t) == b.ip(t) {
		t.Errorf("both have %s", a.ip(t))
	}
	a.must(t, "CHECK")
	b.must(t, "CHECK")
	a.must(t, "DEL")
	b.must(t, "DEL")
	srv.says(t, "DHCPRELEASE", 2)
}
