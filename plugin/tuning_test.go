package plugin_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// tuned is a chain of bridge and tuning with these keys.
func tuned(name, keys string) chain {
	return chain{name: name, plugins: []string{simple, `"type":"tuning"` + keys}}
}

func interfaceOf(t *testing.T, result json.RawMessage, name string) spec.Interface {
	t.Helper()
	res, err := spec.DecodeResult(result, spec.V110)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range res.Interfaces {
		if f.Name == name {
			return f
		}
	}
	return spec.Interface{}
}

// TestTuningAfterBridge: the result tells what tuning changed, CHECK of both plugins goes by it, and names what
// changed after that.
//
// clause: P15 P16 P18 K6
func TestTuningAfterBridge(t *testing.T) {
	r := newRunner(t, tuned("tuned", `,"mac":"02:00:00:00:00:01","mtu":1450,"runtimeConfig":{"mac":"02-00-5E-00-00-0B"},"args":{"cni":{"mtu":1400,"sysctl":{"net.core.somaxconn":"99"}}}`))
	a := &attachment{id: "t", netns: nstest.NewNS(t)}
	r.must("add", r.add(a))
	if f := interfaceOf(t, a.prev, "eth0"); f.MAC != "02:00:5e:00:00:0b" || f.MTU != 1400 || f.Sandbox != a.netns {
		t.Errorf("the result has %+v", f)
	}
	if out := nstest.RunIn(t, a.netns, "ip", "link", "show", "eth0"); !strings.Contains(out, "02:00:5e:00:00:0b") ||
		!strings.Contains(out, "mtu 1400") {
		t.Errorf("the kernel shows %s", out)
	}
	r.must("check", r.check(a))
	for _, change := range [][2]string{{"address", "02:00:00:00:00:09"}, {"mtu", "1300"}} {
		nstest.RunIn(t, a.netns, "ip", "link", "set", "eth0", change[0], change[1])
		for i := range r.chain.plugins {
			if _, err := r.run(i, "CHECK", a, ""); err == nil || !strings.Contains(err.Error(), change[0]+" is "+change[1]) {
				t.Errorf("%s %s: check of plugin %d: %v", change[0], change[1], i, err)
			}
		}
		nstest.RunIn(t, a.netns, "ip", "link", "set", "eth0", "address", "02:00:5e:00:00:0b", "mtu", "1400")
		r.must("check", r.check(a))
	}
	// The host's neighbours were told: what it sends arrives.
	nstest.Run(t, "ping", "-c1", "-W600", a.text("IP4"))
	r.must("del", r.del(a))

	// In versions before 1.1.0 a result has no MTU.
	a = &attachment{id: "t", netns: nstest.NewNS(t)}
	r.must("add", r.add(a))
	res, err := spec.DecodeResult(a.prev, spec.V110)
	r.must("decode", err)
	old, err := res.Encode(spec.V100)
	r.must("encode", err)
	a.prev = old
	r.must("check", r.check(a))
	r.must("del", r.del(a))
}

// TestTuningTwiceInAChain: the second one wins, both CHECKs pass, and DEL restores what was before the first.
//
// clause: P16
func TestTuningTwiceInAChain(t *testing.T) {
	r := newRunner(t, chain{name: "two", plugins: []string{simple,
		`"type":"tuning","mtu":1400,"txQLen":5,"sysctl":{"net.core.somaxconn":"501"}`,
		`"type":"tuning","mtu":1350,"txQLen":6,"mac":"02:00:00:00:00:0c","sysctl":{"net/core/somaxconn":"502","net.ipv4.ip_default_ttl":"9"}`}})
	a := &attachment{id: "t", netns: nstest.NewNS(t)}
	r.must("add", r.add(a))
	r.must("check", r.check(a))
	for i := 2; i > 0; i-- { // bridge's link stays to be looked at
		_, err := r.run(i, "DEL", a, "")
		r.must("del", err)
		out := nstest.RunIn(t, a.netns, "ip", "link", "show", "eth0")
		if v := nstest.RunIn(t, a.netns, "sysctl", "-n", "net.core.somaxconn",
			"net.ipv4.ip_default_ttl"); strings.Join(strings.Fields(v), " ") != "4096 64" ||
			strings.Contains(out, "02:00:00:00:00:0c") || !strings.Contains(out, "mtu 1500") ||
			!strings.Contains(out, "qlen 1000") {
			t.Errorf("after DEL of plugin %d sysctls %q, and\n%s", i, v, out)
		}
	}
	r.must("del", r.del(a))
}

// TestTuningRefusals changes nothing, and says by path and value what is allowed.
//
// clause: K11 K12 K13 P11 P12
func TestTuningRefusals(t *testing.T) {
	r := newRunner(t, tuned("bad", ""))
	warm := &attachment{id: "w", netns: nstest.NewNS(t)}
	r.must("add", r.add(warm))
	r.must("del", r.del(warm))
	a := &attachment{id: "b", netns: nstest.NewNS(t)}
	out, err := r.run(0, "ADD", a, "")
	r.must("add bridge", err)
	a.prev = out
	look := func() string {
		return state(t) + nstest.RunIn(t, a.netns, "ip", "link") +
			nstest.RunIn(t, a.netns, "sh", "-c",
				"grep -rs . /proc/sys/net/core /proc/sys/net/ipv4/conf /proc/sys/net/ipv4/ip_default_ttl || true")
	}
	before := look()
	for _, tt := range []struct {
		extra string
		code  spec.Code
		say   string
	}{
		{`,"mac":"01:00:5e:00:00:01"`, spec.CodeConfig, `mac: "01:00:5e:00:00:01": is a group address`},
		{`,"args":{"cni":{"mac":"00:00:00:00:00:00"}}`, spec.CodeConfig, `mac: "00:00:00:00:00:00"`},
		{`,"mac":"02:00:00:00:00"`, spec.CodeConfig, `want 6 bytes`},
		{`,"mtu":67`, spec.CodeConfig, `mtu: 67: want 68 to 65535`},
		{`,"mtu":65536`, spec.CodeConfig, `mtu: 65536`},
		{`,"mtu":"1400"`, spec.CodeDecode, `mtu`},
		{`,"txQLen":-1`, spec.CodeConfig, `txQLen: -1: want 0 to`},
		{`,"sysctl":{"net.core.somaxconn":"1\n2"}`, spec.CodeConfig, `want a value of one line`},
		{`,"sysctl":{"net.core.somaxconn":5}`, spec.CodeConfig, `want a string`},
		{`,"sysctl":{"kernel.hostname":"x"}`, spec.CodeConfig, `not below net`},
		{`,"sysctl":{"net/../kernel/hostname":"x"}`, spec.CodeConfig, `not a key`},
		{`,"txQLen":5,"sysctl":{"net.core.somaxcon":"5"}`, spec.CodeConfig, `did you mean "net.core.somaxconn"`},
		{`,"mtu":1400,"sysctl":{"net.core.somaxconn":"5","net.ipv4.ip_default_ttl":"x"}`, spec.CodeConfig, `sysctl.net.ipv4.ip_default_ttl: "x"`},
		{`,"mtu":1400,"dataDir":"/proc/version"`, spec.CodeIO, `dataDir`},
		{`,"strict":true,"txqlen2":1`, spec.CodeUnsupported, `did you mean "txQLen"`},
	} {
		_, err := r.run(1, "ADD", a, tt.extra)
		wantCode(t, "add with "+tt.extra, err, tt.code, tt.say)
		if after := look(); after != before {
			t.Errorf("%s left\n%s\nbefore it was\n%s", tt.extra, after, before)
		}
		_, err = r.run(1, "DEL", a, tt.extra)
		r.must("del with "+tt.extra, err)
	}
	r.must("del", r.del(a))
}

// TestTuningAllowList: ADD refuses what no line matches, as it was written, before anything is changed; CHECK and
// DEL do not ask.
//
// clause: K13
func TestTuningAllowList(t *testing.T) {
	r := newRunner(t, tuned("listed", `,"mtu":1400,"sysctl":{"net.core.somaxconn":"501","net.ipv4.conf.IFNAME.arp_accept":"1"}`))
	a := &attachment{id: "l", netns: nstest.NewNS(t)}
	file := "/etc/cni/tuning/allowlist.conf"
	put := func(text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { os.RemoveAll(filepath.Dir(file)) })
	put("^net.core.somaxconn$\n\n  ^net.ipv4.conf.IFNAME.(accept|send)_redirects$ \n")
	wantCode(t, "add", r.add(a), spec.CodeConfig, `sysctl.net.ipv4.conf.IFNAME.arp_accept: not allowed by /etc/cni/tuning/allowlist.conf, whose patterns are ["^net.core.somaxconn$" "^net.ipv4.conf.IFNAME.(accept|send)_redirects$"]`)
	if v := nstest.RunIn(t, a.netns, "sysctl", "-n", "net.core.somaxconn"); strings.TrimSpace(v) != "4096" {
		t.Errorf("somaxconn is %s", v)
	}
	wantCode(t, "status", r.status(), spec.CodeUnavailable, "arp_accept")
	r.must("del", r.del(a))
	put("somax\narp")
	r.must("status", r.status())
	r.must("add", r.add(a))
	put("nothing")
	r.must("check", r.check(a))
	r.must("del", r.del(a))
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	r.must("add without a list", r.add(a))
	r.must("del", r.del(a))
}

// TestTuningFromReference deletes what the reference plugin has added, and has it delete what we did.
//
// clause: P12 P13
func TestTuningFromReference(t *testing.T) {
	const debian = "/usr/lib/cni/tuning"
	nstest.NeedProgram(t, debian)
	// Debian's speaks 1.0.0; of two keys the last one counts.
	ours := newRunner(t, tuned("moved", `,"cniVersion":"1.0.0","mac":"02:00:00:00:00:0d","mtu":1400,"promisc":true,"allmulti":true`))
	theirs := &runner{t: t, dir: t.TempDir(), chain: ours.chain, ifName: ours.ifName}
	for name, path := range map[string]string{"bridge": filepath.Join(ours.dir, "bridge"),
		"host-local": filepath.Join(ours.dir, "host-local"), "tuning": debian} {
		if err := os.Symlink(path, filepath.Join(theirs.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	ours.chain.plugins[0] += `,"cniVersion":"1.0.0"`
	const file = "/run/cni/tuning/r_eth0.json"
	for _, tt := range []struct {
		what     string
		add, del *runner
	}{{"ours after theirs", theirs, ours}, {"theirs after ours", ours, theirs}} {
		a := &attachment{id: "r", netns: nstest.NewNS(t)}
		out, err := tt.add.run(0, "ADD", a, "")
		tt.add.must("add bridge", err)
		a.prev = out
		before := nstest.RunIn(t, a.netns, "ip", "link", "show", "eth0")
		out, err = tt.add.run(1, "ADD", a, "")
		tt.add.must("add tuning", err)
		a.prev = out
		if after := nstest.RunIn(t, a.netns, "ip", "link", "show", "eth0"); after == before {
			t.Errorf("%s: nothing was tuned: %s", tt.what, after)
		}
		_, err = tt.del.run(1, "DEL", a, "")
		tt.del.must("del", err)
		if after := nstest.RunIn(t, a.netns, "ip", "link", "show", "eth0"); after != before {
			t.Errorf("%s: restored to\n%s\nbefore it was\n%s", tt.what, after, before)
		}
		if _, err := os.Lstat(file); err == nil {
			t.Errorf("%s: %s is left", tt.what, file)
		}
		ours.must("del", ours.del(a))
	}
	// The container is gone; its file goes too.
	a := &attachment{id: "r", netns: nstest.NewNS(t)}
	theirs.must("add", theirs.add(a))
	if err := nstest.RemoveNS(a.netns); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(file); err != nil {
		t.Fatal(err)
	}
	ours.must("del", ours.del(&attachment{id: "r", netns: a.netns}))
	if _, err := os.Lstat(file); err == nil {
		t.Errorf("%s is left", file)
	}
}

// TestTuningOthers tunes links that other plugins make: a macvlan, which may be of the one MAC only that no other
// has, and a tap in the container, which carries nothing until its hypervisor runs.
//
// clause: P18
func TestTuningOthers(t *testing.T) {
	r := newRunner(t, chain{name: "others", plugins: []string{`"type":"tuning","mac":"02:00:00:00:00:0e","mtu":1300,"promisc":true,"allmulti":true,"txQLen":9,"sysctl":{"net.ipv4.conf.IFNAME.arp_accept":"1"}`}})
	ns := nstest.NewNS(t)
	nstest.RunIn(t, ns, "ip", "link", "add", "up0", "up", "type", "veth", "peer", "name", "up1")
	nstest.RunIn(t, ns, "ip", "link", "set", "up1", "up")
	nstest.RunIn(t, ns, "ip", "link", "add", "mac.7", "link", "up0", "address", "02:00:00:00:00:44", "type", "macvlan",
		"mode", "bridge")
	links := []string{"mac.7"}
	if f, err := os.OpenFile("/dev/net/tun", os.O_RDWR|unix.O_CLOEXEC, 0); err == nil { // else only root has taps
		f.Close()
		nstest.RunIn(t, ns, "ip", "tuntap", "add", "tap0", "mode", "tap")
		nstest.RunIn(t, ns, "ip", "link", "set", "tap0", "up", "address", "02:00:00:00:00:45")
		links = append(links, "tap0")
	}
	nstest.RunIn(t, ns, "ip", "addr", "add", "10.99.0.2/24", "dev", "mac.7")
	clean := state(t)
	for _, name := range links {
		r.ifName = name
		show := func() string {
			return nstest.RunIn(t, ns, "ip", "link", "show", name) +
				nstest.RunIn(t, ns, "cat", "/proc/sys/net/ipv4/conf/"+name+"/arp_accept")
		}
		before := show()
		prev := fmt.Sprintf(`{"cniVersion":"1.1.0","interfaces":[{"name":%q,"mac":"02:00:00:00:00:44","sandbox":%q}],"ips":[{"address":"10.99.0.2/24","interface":0}],"routes":[{"dst":"0.0.0.0/0"}],"dns":{"domain":"x"},"vendor":1}`, name, ns)
		a := &attachment{id: "o", netns: ns, prev: []byte(prev)}
		out, err := r.run(0, "ADD", a, "")
		r.must("add "+name, err)
		if f := interfaceOf(t, out, name); f.MAC != "02:00:00:00:00:0e" || f.MTU != 1300 {
			t.Errorf("%s: the result has %+v", name, f)
		}
		if !strings.Contains(string(out), `"vendor"`) || !strings.Contains(string(out), `"0.0.0.0/0"`) {
			t.Errorf("%s: the result lost something: %s", name, out)
		}
		a.prev = out
		r.must("check", r.check(a))
		nstest.RunIn(t, ns, "ip", "link", "set", name, "txqueuelen", "10")
		if err := r.check(a); err == nil || !strings.Contains(err.Error(), "txqueuelen is 10") {
			t.Errorf("check: %v", err)
		}
		r.must("del", r.del(&attachment{id: "o", netns: ns}))
		if after := show(); after != before {
			t.Errorf("%s: restored to\n%s\nbefore it was\n%s", name, after, before)
		}
	}
	same(t, "all of it", clean)
}

// TestTuningKilled kills ADD of tuning at each call that can change something; DEL puts back whatever it did.
//
// clause: P11 P12
func TestTuningKilled(t *testing.T) {
	r := newRunner(t, tuned("killed", `,"mac":"02:00:00:00:00:0f","mtu":1400,"promisc":true,"allmulti":true,"txQLen":9,"sysctl":{"net.core.somaxconn":"501","net.ipv4.conf.IFNAME.arp_accept":"1"}`))
	a := &attachment{id: "k", netns: nstest.NewNS(t)}
	out, err := r.run(0, "ADD", a, "")
	r.must("add bridge", err)
	a.prev = out
	look := func() string {
		return state(t) + nstest.RunIn(t, a.netns, "ip", "link", "show", "eth0") +
			nstest.RunIn(t, a.netns, "sysctl", "net.core.somaxconn", "net.ipv4.conf.eth0.arp_accept")
	}
	_, err = r.run(1, "ADD", a, "")
	r.must("add", err)
	_, err = r.run(1, "DEL", a, "")
	r.must("del", err)
	before, halfway := look(), 0
	// A thread of the plugin's enters the container, and strace counts by thread: so each kind of call by itself.
	for _, call := range []string{"sendto", "write", "pwrite64", "renameat", "mkdirat", "unlinkat"} {
		t.Run(call, func(t *testing.T) {
			r := r.in(t)
			nstest.Sample(t, 4, func(n int) (killed bool) {
				_, err := r.run(1, "ADD", a, "", "strace", "-f", "-qqq", "-o", "/dev/null", "-e",
					fmt.Sprintf("inject=%s:signal=SIGKILL:when=%d", call, n))
				if err != nil && look() != before {
					halfway++
				}
				_, derr := r.run(1, "DEL", &attachment{id: "k", netns: a.netns}, "")
				r.must("del", derr)
				if after := look(); after != before {
					t.Fatalf("a kill at %s %d left\n%s\nbefore it was\n%s", call, n, after, before)
				}
				return err != nil
			})
		})
	}
	t.Logf("%d had changed anything", halfway)
	if halfway == 0 {
		t.Error("too few: was it killed at all?")
	}
	r.must("del", r.del(a))
}

// TestTuningWithoutLink sets sysctls for an interface that is none of the kernel's, as those of DPDK and vhost-user,
// and gives them back. What asks for a change of the interface itself still fails.
//
// clause: P18
func TestTuningWithoutLink(t *testing.T) {
	c := tuned("userspace", `,"sysctl":{"net.core.somaxconn":"501"},"dataDir":"relative"`)
	c.plugins = c.plugins[len(c.plugins)-1:]
	r := newRunner(t, c)
	t.Chdir(t.TempDir())
	a := &attachment{id: "u", netns: nstest.NewNS(t)}
	prev := `,"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","socketPath":"/run/vhost.sock","sandbox":"` + a.netns + `"}]}`
	somaxconn := func(want string) {
		t.Helper()
		if v := strings.TrimSpace(nstest.RunIn(t, a.netns, "sysctl", "-n", "net.core.somaxconn")); v != want {
			t.Errorf("somaxconn is %s, want %s", v, want)
		}
	}
	out, err := r.run(0, "ADD", a, prev)
	r.must("add", err)
	if !strings.Contains(string(out), "/run/vhost.sock") {
		t.Errorf("the result lost the interface: %s", out)
	}
	somaxconn("501")
	_, err = r.run(0, "CHECK", a, prev)
	r.must("check", err)
	nstest.RunIn(t, a.netns, "sysctl", "-qw", "net.core.somaxconn=77")
	if _, err = r.run(0, "CHECK", a, prev); err == nil || !strings.Contains(err.Error(), "somaxconn") {
		t.Errorf("check of a changed sysctl: %v", err)
	}
	_, err = r.run(0, "DEL", a, prev)
	r.must("del", err)
	somaxconn("4096")
	if _, err = r.run(0, "ADD", a, `,"mtu":1400`+prev); err == nil || !strings.Contains(err.Error(), "eth0") {
		t.Errorf("an MTU of no link: %v", err)
	}
	_, err = r.run(0, "ADD", a, `,"sysctl":{"net.ipv4.conf.IFNAME.arp_accept":"1"}`+prev)
	wantCode(t, "a sysctl of no link", err, spec.CodeConfig, "arp_accept")
	somaxconn("4096")
}

// TestReadOnlyRun deletes what was never added where /run/cni is read-only.
//
// clause: P12
func TestReadOnlyRun(t *testing.T) {
	if err := os.MkdirAll("/run/cni", 0o755); err != nil {
		t.Fatal(err)
	}
	nstest.Run(t, "mount", "-t", "tmpfs", "-o", "ro", "tmpfs", "/run/cni")
	t.Cleanup(func() { nstest.Run(t, "umount", "/run/cni") })
	netns := nstest.NewNS(t)
	r := newRunner(t, chain{})
	for _, c := range chains { // without what its ADD needs of the host
		r.chain = c.chain
		if err := r.del(&attachment{id: "never", netns: netns}); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
