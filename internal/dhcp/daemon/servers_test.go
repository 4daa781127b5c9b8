package daemon_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// kea serves a pool for as long as is said, in seconds, which dnsmasq cannot.
func (l lan) kea(t *testing.T, pool string, valid, t1, t2 int, more ...string) *process {
	t.Helper()
	nstest.NeedProgram(t, "kea-dhcp4")
	dir := t.TempDir()
	conf := fmt.Sprintf(`{"Dhcp4":{"interfaces-config":{"interfaces":["eth0"]},"lease-database":{"type":"memfile","persist":false},
		"valid-lifetime":%d,"renew-timer":%d,"rebind-timer":%d,"calculate-tee-times":false,"authoritative":true,
		"control-socket":{"socket-type":"unix","socket-name":%q},
		"subnet4":[{"subnet":"10.9.0.0/24","pools":[{"pool":%q}],"option-data":[{"name":"routers","data":"10.9.0.254"}]}],
		"loggers":[{"name":"kea-dhcp4","severity":"INFO","output_options":[{"output":"stdout"}]}]%s}}`,
		valid, t1, t2, filepath.Join(dir, "ctl"), pool, strings.Join(append([]string{""}, more...), ","))
	file := filepath.Join(dir, "kea.json")
	if err := os.WriteFile(file, []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("nsenter", "--net="+l.server, "kea-dhcp4", "-c", file)
	cmd.Env = append(os.Environ(), "KEA_PIDFILE_DIR="+dir, "KEA_LOCKFILE_DIR="+dir)
	p := start(t, cmd)
	p.says(t, "DHCP4_STARTED", 1)
	return p
}

// A lease of some seconds is renewed in time, again and again.
func TestRenewal(t *testing.T) {
	l := newLAN(t)
	srv := l.kea(t, "10.9.0.100 - 10.9.0.110", 600, 1, 400)
	startDaemon(t)
	a := newAttachment(t, "c1", overBridge)
	began := time.Now()
	a.must(t, "ADD")
	first := entries(t)[0].Lease.Over()
	srv.says(t, "DHCP4_LEASE_ALLOC", 5)
	if since := time.Since(began); since < 3*time.Second {
		t.Errorf("four renewals within %v: it was to be asked after a second each", since)
	}
	a.must(t, "CHECK")
	if list := entries(t); len(list) != 1 || !list[0].Lease.Over().After(first) {
		t.Errorf("the daemon keeps %+v; the lease was over at %v first", list, first)
	}
	a.must(t, "DEL")
	srv.says(t, "DHCP4_RELEASE ", 1)
}

// A server that dies is asked again until its lease is over, then the address is off the link and CHECK says so; when a
// server comes it gives a new one, which goes on the link.
func TestServerDies(t *testing.T) {
	l := newLAN(t)
	srv := l.kea(t, "10.9.0.100 - 10.9.0.110", 10, 1, 4)
	d := startDaemon(t, "-timeout", "1s")
	a := newAttachment(t, "c1", overBridge)
	a.must(t, "ADD")
	srv.end(syscall.SIGKILL)
	d.says(t, "a lease is over", 1)
	if out := nstest.RunIn(t, a.netns, "ip", "-4", "addr", "show", "eth0"); strings.Contains(out, "inet ") {
		t.Errorf("the address is still there:\n%s", out)
	}
	for _, words := range []string{"is over", "was not renewed in time"} {
		if err := a.call(t, "CHECK"); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("CHECK says %v", err)
		}
	}
	srv = l.kea(t, "10.9.0.200 - 10.9.0.210", 3600, 1000, 2000)
	d.says(t, "a lease has changed", 1)
	srv.says(t, "DHCP4_LEASE_ALLOC", 1)
	now := entries(t)[0].Lease
	out := nstest.RunIn(t, a.netns, "sh", "-c", "ip addr show eth0; ip route")
	if !strings.Contains(out, now.Addresses[0].Prefix.String()) || !strings.Contains(out, "default via 10.9.0.254") {
		t.Errorf("the new lease is of %v, and there is\n%s", now.Prefixes(), out)
	}
	if err := a.call(t, "CHECK"); err == nil || !strings.Contains(err.Error(), "the address is 10.9.0.2") {
		t.Errorf("CHECK says %v", err)
	}
	a.must(t, "DEL")
	srv.says(t, "DHCP4_RELEASE ", 1)
}

// A server that is restarted and remembers nothing renews what it gave, for the range is the same.
func TestServerRestarts(t *testing.T) {
	l := newLAN(t)
	srv := l.kea(t, "10.9.0.100 - 10.9.0.110", 600, 1, 60)
	startDaemon(t, "-timeout", "1s")
	a := newAttachment(t, "c1", overBridge)
	a.must(t, "ADD")
	srv.end(syscall.SIGKILL)
	srv = l.kea(t, "10.9.0.100 - 10.9.0.110", 600, 1, 400)
	srv.says(t, "DHCP4_LEASE_ALLOC", 2)
	a.must(t, "CHECK")
}

// A server that refuses ends a lease at once: the address is exchanged for one of its own range.
func TestNAK(t *testing.T) {
	l := newLAN(t)
	// Any server is asked after a minute at most: the second one may not have started yet when the first is asked.
	srv := l.kea(t, "10.9.0.100 - 10.9.0.110", 600, 2, 60)
	d := startDaemon(t, "-timeout", "1s")
	a := newAttachment(t, "c1", `"type":"bridge","bridge":"cni0","ipam":{"type":"dhcp","routes":[{"dst":"10.3.0.0/16"},{"dst":"10.4.0.0/16","table":77,"advmss":1200,"priority":9}]}`)
	a.must(t, "ADD")
	was := a.ip(t)
	srv.end(syscall.SIGKILL)
	srv = l.dnsmasq(t, "--dhcp-range=10.9.0.10,10.9.0.50,255.255.255.0,2m", "--dhcp-authoritative",
		"--dhcp-option=option:router,10.9.0.253")
	d.says(t, "refused the lease", 1)
	d.says(t, "a lease has changed", 1)
	out := nstest.RunIn(t, a.netns, "sh", "-c", "ip addr show eth0; ip route; ip route show table 77")
	for _, words := range []string{"inet 10.9.0.", "default via 10.9.0.253", "10.3.0.0/16 via 10.9.0.253",
		"10.4.0.0/16 via 10.9.0.253 dev eth0 metric 9 advmss 1200"} {
		if !strings.Contains(out, words) {
			t.Errorf("no %s in\n%s", words, out)
		}
	}
	if strings.Contains(out, was) || strings.Contains(out, "10.9.0.254") {
		t.Errorf("%s or its router is left in\n%s", was, out)
	}
	a.must(t, "DEL")
	srv.says(t, "DHCPRELEASE", 1)
}

// Two servers on a link: one gives the lease, and the other one is told that it does not.
func TestTwoServers(t *testing.T) {
	l := newLAN(t)
	l2 := lan{l.bridge, nstest.NewNS(t)}
	nstest.Run(t, "sh", "-ec", "ip link add srv1 type veth peer name eth0 netns "+filepath.Base(l2.server)+
		" && ip link set srv1 master cni0 up")
	t.Cleanup(func() { exec.Command("ip", "link", "del", "srv1").Run() })
	nstest.RunIn(t, l2.server, "sh", "-ec", "ip addr add 10.9.0.2/24 dev eth0; ip link set lo up; ip link set eth0 up")
	one := l.kea(t, "10.9.0.100 - 10.9.0.110", 600, 1, 400)
	two := l2.kea(t, "10.9.0.200 - 10.9.0.210", 600, 1, 400)
	startDaemon(t)
	for i := range 4 {
		a := newAttachment(t, fmt.Sprint("c", i), overBridge)
		a.must(t, "ADD")
		a.must(t, "CHECK")
	}
	// All are renewed by who gave them, whatever the other one knows.
	given := func() int {
		const words = "DHCP4_LEASE_ALLOC"
		return strings.Count(one.text(), words) + strings.Count(two.text(), words)
	}
	late := nstest.Context(t).Done()
	for given() < 16 {
		select {
		case <-one.more:
		case <-two.more:
		case <-late:
			t.Fatalf("%d leases and renewals", given())
		}
	}
	for _, e := range entries(t) {
		if e.State != "bound" && e.State != "renewing" {
			t.Errorf("%+v", e)
		}
	}
}

// A pool that is empty is code 11, in the time that is allowed, and what was there before stays.
// clause: I4 P8
func TestEmptyPool(t *testing.T) {
	for name, serve := range map[string]func(lan, *testing.T) *process{
		"dnsmasq": func(l lan, t *testing.T) *process {
			return l.dnsmasq(t, "--dhcp-range=10.9.0.10,10.9.0.10,255.255.255.0,2m")
		},
		"kea": func(l lan, t *testing.T) *process { return l.kea(t, "10.9.0.10 - 10.9.0.10", 100, 50, 80) },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLAN(t)
			serve(l, t)
			d := startDaemon(t)
			a, b := newAttachment(t, "c1", overBridge), newAttachment(t, "c2", overBridge)
			a.must(t, "ADD")
			d.end(syscall.SIGKILL)
			d = startDaemon(t, "-resendtimeout", "3s")
			coded(t, b.call(t, "ADD"), 11, "no DHCP server answered within 3s")
			d.end(syscall.SIGKILL)
			startDaemon(t)
			if out := nstest.RunIn(t, b.netns, "ip", "-br", "link"); strings.Contains(out, "eth0") {
				t.Errorf("a failed ADD left\n%s", out)
			}
			a.must(t, "CHECK")
			a.must(t, "DEL")
			b.must(t, "ADD")
		})
	}
}

// coded fails unless err is a document of that code with those words.
func coded(t *testing.T, err error, code int, words string) {
	t.Helper()
	b, _ := json.Marshal(err)
	var e struct{ Code int }
	json.Unmarshal(b, &e)
	if err == nil || e.Code != code || !strings.Contains(err.Error(), words) {
		t.Errorf("got code %d, %v; want %d, %q", e.Code, err, code, words)
	}
}

// An address that somebody on the link has is declined, and the container gets another one.
func TestDecline(t *testing.T) {
	l := newLAN(t)
	nstest.RunIn(t, l.server, "ip", "addr", "add", "10.9.0.100/32", "dev", "eth0") // of whom Kea does not know
	srv := l.kea(t, "10.9.0.100 - 10.9.0.101", 3600, 1000, 2000)
	startDaemon(t)
	a := newAttachment(t, "c1", `"type":"bridge","bridge":"cni0","conflictDetection":"probe","ipam":{"type":"dhcp"}`)
	a.must(t, "ADD")
	if a.ip(t) != "10.9.0.101/24" {
		t.Errorf("got %s", a.ip(t))
	}
	srv.says(t, "DHCP4_DECLINE", 1)
	a.must(t, "CHECK")
	a.must(t, "DEL")
}

// When a lease's server is gone for good, another one of the same pool takes the lease over, once any may be asked.
func TestRebind(t *testing.T) {
	l := newLAN(t)
	srv := l.kea(t, "10.9.0.100 - 10.9.0.110", 600, 1, 4)
	startDaemon(t, "-timeout", "1s")
	a := newAttachment(t, "c1", overBridge)
	a.must(t, "ADD")
	srv.end(syscall.SIGKILL)
	nstest.RunIn(t, l.server, "ip", "addr", "del", serverAddr+"/24", "dev", "eth0")
	nstest.RunIn(t, l.server, "ip", "addr", "add", "10.9.0.2/24", "dev", "eth0")
	srv = l.kea(t, "10.9.0.100 - 10.9.0.110", 3600, 1000, 2000)
	srv.says(t, "DHCP4_LEASE_ALLOC", 1)
	late := nstest.Deadline(t)
	for entries(t)[0].Lease.Server.Addr.String() != "10.9.0.2" && time.Now().Before(late) {
	}
	if e := entries(t)[0]; e.State != "bound" || e.Lease.Server.Addr.String() != "10.9.0.2" ||
		e.Lease.Addresses[0].Prefix.String() != a.ip(t) {
		t.Errorf("it keeps %+v of %v", e, e.Lease)
	}
	a.must(t, "CHECK")
	a.must(t, "DEL")
	srv.says(t, "DHCP4_RELEASE ", 1)
}
