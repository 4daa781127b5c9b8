package plugin_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

// wire makes ens4 on a host of its own, a veth whose other end is called wire.
func wire(t *testing.T) (host string, sh func(script string) string) {
	host = nstest.NewNS(t)
	sh = func(script string) string { t.Helper(); return nstest.RunIn(t, host, "sh", "-ec", script) }
	sh("ip link set lo up; ip link add ens4 up type veth peer name wire; ip link set wire up")
	return host, sh
}

// What readlink says of /sys/class/net/ens4 is a way to name it, and one that is not there is said with those that are.
func TestHostDeviceKernelPathOfLink(t *testing.T) {
	host, sh := wire(t)
	r := newRunner(t, chain{"kernelpath", []string{`"type":"host-device","kernelpath":"/sys/devices/virtual/net/ens4"`}, nil})
	r.host = host
	a := &attachment{id: "c1", netns: nstest.NewNS(t)}
	r.must("status", r.status())
	r.must("add", r.add(a))
	r.must("check", r.check(a))
	r.must("status while it is in use", r.status())
	r.must("del", r.del(a))
	if links := sh("ip -br link"); !strings.Contains(links, "ens4@") {
		t.Errorf("del left %s", links)
	}
	for path, say := range map[string]string{
		"/sys/devices/virtual/net/ens5": `kernelpath: "ens5": no such device on the host; there is`,
		"/sys/devices/virtual":          `kernelpath: "/sys/devices/virtual": no such device on the host`,
	} {
		r.chain.plugins[0] = `"type":"host-device","kernelpath":"` + path + `"`
		wantCode(t, path, r.status(), spec.CodeUnavailable, say)
		wantCode(t, path, r.add(a), spec.CodeConfig, say)
	}
}

// CHECK says what the container calls the device now.
//
// clause: P14
func TestHostDeviceRenamed(t *testing.T) {
	r := newRunner(t, chain{"hd-renamed", []string{`"type":"host-device","device":"ens4"`}, nil})
	r.host, _ = wire(t)
	a := &attachment{id: "c1", netns: nstest.NewNS(t)}
	r.must("add", r.add(a))
	nstest.RunIn(t, a.netns, "sh", "-ec", "ip link set eth0 down; ip link set eth0 name net9; ip link set net9 up")
	if err := r.check(a); err == nil || !strings.Contains(err.Error(), "it is called net9 now") {
		t.Errorf("check: %v", err)
	}
	r.must("del", r.del(a))
}

// A device that its container has deleted is in nobody's way: another one of its name is for the same attachment too.
//
// clause: P12
func TestHostDeviceMadeAnew(t *testing.T) {
	host, sh := wire(t)
	r := newRunner(t, chain{"anew", []string{`"type":"host-device","device":"ens4"`}, nil})
	r.host = host
	a := &attachment{id: "c1", netns: nstest.NewNS(t)}
	r.must("add", r.add(a))
	nstest.RunIn(t, a.netns, "ip", "link", "del", "eth0")
	r.must("del", r.del(&attachment{id: "c1", netns: a.netns}))
	sh("ip link add ens4 up mtu 1400 type veth peer name wire; ip link set wire up")
	r.must("status", r.status())
	r.must("add of the new one", r.add(a))
	r.must("check", r.check(a))
	r.must("del", r.del(a))
	// The kernel says in its own time that there is a carrier.
	if links := sh("ip link"); !regexp.MustCompile(`ens4@wire: <[^>]*\bUP\b[^>]*> mtu 1400`).MatchString(links) {
		t.Errorf("del left %s", links)
	}
}

// A link whose cable is out is attached with a warning, which is no drift.
//
// clause: P14
func TestCheckWithoutCarrier(t *testing.T) {
	host, sh := wire(t)
	// the kernel says it in its own time
	sh("ip link set wire down; until ip link show ens4 | grep -q NO-CARRIER; do :; done")
	for name, conf := range map[string]string{
		"host-device": `"type":"host-device","device":"ens4",` + hostLocal,
		"macvlan":     `"type":"macvlan","master":"ens4",` + hostLocal,
	} {
		t.Run(name, func(t *testing.T) {
			if name == "macvlan" {
				nstest.Need(t, name)
			}
			r := newRunner(t, chain{"carrier-" + name, []string{conf}, nil})
			r.host = host
			a := &attachment{id: "c1", netns: nstest.NewNS(t)}
			if s := r.addSaying(a); !strings.Contains(s, "has no carrier") {
				t.Errorf("add said %q", s)
			}
			r.must("check", r.check(a))
			nstest.RunIn(t, a.netns, "ip", "link", "set", "eth0", "down")
			if err := r.check(a); err == nil || !strings.Contains(err.Error(), "down") {
				t.Errorf("check of a link that is down: %v", err)
			}
			r.must("del", r.del(a))
		})
	}
}
