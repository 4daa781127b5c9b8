package plugin_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/kernel/tap"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// A machine is behind a container's tap: a namespace with a tap of its own, and a hypervisor that carries frames
// from one to the other.
//
//	c eth0 (the plugin's tap) ══ hypervisor ══ eth0 guest, and behind it beyond
func (s *site) machine(r *runner, a *attachment) {
	s.Helper()
	s.open("c", a.netns)
	s.open("guest", nstest.NewNS(s))
	tap, far := openTap(s.T, side{ns: s.ns["c"]}, "eth0"), openTap(s.T, side{ns: s.ns["guest"]}, "eth0")
	frames(tap, far)
	s.sh("guest", "ip link set lo up; sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1; ip addr add 10.86.0.1/24 dev eth0; ip addr add fd00:86::1/64 dev eth0 nodad"+
		"; ip addr add 198.51.100.1/32 dev lo; ip addr add 2001:db8:1::1/128 dev lo nodad; ip link set eth0 up")
	s.addr["guest"] = [2]string{"10.86.0.1", "fd00:86::1"}
	s.addr["beyond"] = [2]string{"198.51.100.1", "2001:db8:1::1"}
	s.serve("guest")
	s.serve("c")
}

// settled waits until the kernel has made sure that nobody else has a container's IPv6 address, which begins when a
// program opens the tap.
func (s *site) settled(name, link, addr string) {
	s.Helper()
	ns := s.ns[name]
	err := rtnl.Await(ns, s.Context(), nstest.Patience(s), []uint{rtnl.IPv6AddrEvents}, func() (bool, error) {
		i, err := rtnl.IndexOf(ns, link)
		if err != nil {
			return false, err
		}
		list, err := rtnl.Addrs(ns, i)
		for _, a := range list {
			if a.Prefix.Addr() == netip.MustParseAddr(addr) && !a.Tentative {
				return true, nil
			}
		}
		return false, err
	})
	if err != nil {
		s.Fatalf("%s: %v", addr, err)
	}
}

// TestTapFrames has a program open a container's tap and carry its frames: from the container to a machine, and to a
// host beyond it, and back.
//
// clause: P17 P24 P26 C11
func TestTapFrames(t *testing.T) {
	needTap(t)
	for name, more := range map[string]string{"plain": "", "jumbo": `,"mtu":9000,"mac":"02:00:5E:00:00:0C"`} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			r := s.network("a")
			r.chain.plugins = []string{`"type":"tap","owner":0,"group":0,"dns":{"nameservers":["10.86.0.1"]}` + more +
				`,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.86.0.0/24"}],[{"subnet":"fd00:86::/64"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}`}
			a := &attachment{id: "c", netns: nstest.NewNS(t)}
			r.must("add", r.add(a))
			r.must("check before anybody opens it", r.check(a))
			res, err := spec.DecodeResult(a.prev, spec.V110)
			r.must("decode", err)
			if f := res.Interfaces; len(f) != 1 || f[0].Name != "eth0" || f[0].Sandbox != a.netns || len(res.IPs) != 2 ||
				*res.IPs[0].Interface != 0 || len(res.DNS.Nameservers) != 1 {
				t.Errorf("result %s", a.prev)
			} else if name == "jumbo" && (f[0].MTU != 9000 || f[0].MAC != "02:00:5e:00:00:0c") {
				t.Errorf("interface %+v", f[0])
			}
			s.machine(r, a)
			s.addr["c"] = [2]string{a.text("IP4"), a.text("IP6")}
			s.settled("c", "eth0", s.addr["c"][1])
			for v := range 2 {
				at := func(name string) string { return net.JoinHostPort(s.addr[name][v], "80") }
				s.ping("c", s.addr["guest"][v])
				s.ping("c", s.addr["beyond"][v])
				s.ping("guest", s.addr["c"][v])
				s.expect("to the machine", "c", at("guest"), "guest")
				s.expect("beyond it", "c", at("beyond"), "guest")
				s.expect("from the machine", "guest", at("c"), "c")
			}
			r.must("check while it is open", r.check(a))
			r.must("del while it is open", r.del(a))
			if out := nstest.RunIn(t, a.netns, "ip", "-br", "link"); strings.Contains(out, "eth0") {
				t.Errorf("after DEL: %s", out)
			}
		})
	}
}

// TestTapOnBridge makes the tap a port of a bridge that the container has.
func TestTapOnBridge(t *testing.T) {
	needTap(t)
	s := newSite(t)
	r := s.network("a")
	r.chain.plugins = []string{`"type":"tap","bridge":"br0","multiQueue":false`}
	a := &attachment{id: "c", netns: nstest.NewNS(t)}
	wantCode(t, "without the bridge", r.add(a), spec.CodeConfig, `bridge: "br0": no such link in the container, which has no bridge`)
	nstest.RunIn(t, a.netns, "sh", "-ec",
		"ip link set lo up; ip link add br0 type bridge; ip addr add 10.86.0.2/24 dev br0; ip addr add fd00:86::2/64 dev br0 nodad; ip link set br0 up")
	r.must("add", r.add(a))
	r.must("check", r.check(a))
	s.machine(r, a)
	s.settled("c", "br0", "fd00:86::2")
	s.addr["c"] = [2]string{"10.86.0.2", "fd00:86::2"}
	for v := range 2 {
		s.ping("guest", s.addr["c"][v])
		s.expect("to the machine", "c", net.JoinHostPort(s.addr["guest"][v], "80"), "guest")
		s.expect("from the machine", "guest", net.JoinHostPort(s.addr["c"][v], "80"), "c")
	}
	nstest.RunIn(t, a.netns, "ip", "link", "set", "eth0", "nomaster")
	wantDrift(t, r.check(a), "master is none, want br0")
	r.must("del", r.del(a))
	nstest.RunIn(t, a.netns, "ip", "link", "show", "br0")
}

// TestTapRefused says why there can be no tap, and leaves none.
//
// clause: P8 P10 P11 K13
func TestTapRefused(t *testing.T) {
	needTap(t)
	r := newRunner(t, chain{name: "tap-refused", plugins: []string{`"type":"tap"`}})
	a := &attachment{id: "c", netns: nstest.NewNS(t)}
	before := nstest.RunIn(t, a.netns, "ip", "addr")
	nothing := func(what string) {
		t.Helper()
		if after := nstest.RunIn(t, a.netns, "ip", "addr"); after != before {
			t.Errorf("%s left %s", what, after)
		}
	}
	err := r.add(a, "unshare", "-m", "sh", "-c", `mount -t tmpfs none /dev/net && exec "$@"`, "sh")
	if err == nil || !strings.Contains(err.Error(), "open /dev/net/tun: no such file or directory (load the module tun") {
		t.Errorf("without the device: %v", err)
	}
	nothing("an ADD without the device")

	if _, err := os.Stat("/sys/fs/selinux/enforce"); err != nil {
		r.chain.plugins = []string{`"type":"tap","selinuxContext":"system_u:system_r:container_t:s0"`}
		wantCode(t, "add without SELinux", r.add(a), spec.CodeUnsupported, "there is no SELinux on this host")
		nothing("an ADD without SELinux")
		if err := r.status(); err == nil || !strings.Contains(err.Error(), "SELinux") {
			t.Errorf("status without SELinux: %v", err)
		}
	}

	// What the reference's plugin would take for its own success.
	r.chain.plugins = []string{`"type":"tap"`}
	nstest.RunIn(t, a.netns, "ip", "link", "add", "eth0", "type", "bridge")
	before = nstest.RunIn(t, a.netns, "ip", "addr")
	if err := r.add(a); err == nil || !strings.Contains(err.Error(), "exists already") {
		t.Errorf("add over a link: %v", err)
	}
	nothing("an ADD over a link")
	r.must("del", r.del(a))
	nothing("a DEL of somebody else's link")
	nstest.RunIn(t, a.netns, "ip", "link", "del", "eth0")

	// Its taps bear no mark.
	nstest.RunIn(t, a.netns, "ip", "tuntap", "add", "eth0", "mode", "tap")
	r.must("del of a tap that the reference made", r.del(a))
	if out := nstest.RunIn(t, a.netns, "ip", "-br", "link"); strings.Contains(out, "eth0") {
		t.Errorf("after DEL: %s", out)
	}
}

// TestTapByAnother is what a plugin does under another context of SELinux: it executes itself to give an open device
// its tap, which is in the namespace that the device was opened in. The contexts themselves need a host that has them.
func TestTapByAnother(t *testing.T) {
	needTap(t)
	s := openSide(t, nstest.NewNS(t), "127.0.0.1")
	var tun *os.File
	if err := s.ns.Do(func() (err error) {
		tun,
			err = os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer tun.Close()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	give := func(asked string) error {
		cmd := exec.Command(exe)
		cmd.Args, cmd.Env, cmd.ExtraFiles = []string{"tap"}, []string{tap.LabelledVar + "=" + asked}, []*os.File{tun}
		return cmd.Run()
	}
	var status *exec.ExitError
	if err := give("0:"); !errors.As(err, &status) || status.ExitCode() != int(unix.EINVAL) {
		t.Errorf("what is neither a tap nor a tun: %v", err)
	}
	if err := give(fmt.Sprintf("%d:lab0", unix.IFF_TAP|unix.IFF_NO_PI|unix.IFF_TUN_EXCL)); err != nil {
		t.Fatal(err)
	}
	if out := nstest.RunIn(t, s.ns.Path, "ip", "-d", "link", "show", "lab0"); !strings.Contains(out,
		"tun type tap pi off vnet_hdr off persist off") {
		t.Errorf("the tap is %s", out)
	}
}

// needTap skips where there are no taps: most distributions let everybody open the device, some let only root.
func needTap(t *testing.T) {
	t.Helper()
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		nstest.Skip(t, "/dev/net/tun: ", err)
	}
	f.Close()
}
