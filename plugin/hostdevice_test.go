package plugin_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
)

// spare gives the host a network card that nobody uses, ens9, which is a veth's end and has its cable in a LAN.
func spare(t *testing.T) {
	card(t)
	// it may have gone with its cable
	t.Cleanup(func() { nstest.Run(t, "sh", "-c", "ip link del ens9 2>/dev/null || true") })
}

// card makes the network card where it is gone.
func card(t *testing.T) {
	if exec.Command("ip", "link", "show", "ens9").Run() == nil {
		return
	}
	lan := nstest.NewNS(t)
	nstest.Run(t, "sh", "-ec", "ip link add ens9 address 02:00:00:00:09:09 mtu 1450 type veth peer name wire netns "+
		strings.TrimPrefix(lan, "/run/netns/")+
		"; sysctl -qw net.ipv6.conf.ens9.disable_ipv6=1; ip link set ens9 up alias spare; ip link property add dev ens9 altname enp0s9; ip addr add 203.0.113.9/24 dev ens9; ip route add 198.51.100.0/24 via 203.0.113.1 dev ens9 metric 7")
	nstest.RunIn(t, lan, "sh", "-ec", "ip link set lo up; ip link set wire up; ip addr add 10.77.0.1/24 dev wire")
}

// device makes the runner of containers that get the host's wan.
func (s *site) device(keys string) *runner {
	return s.neighbours(`"type":"host-device",` + keys)
}

// TestHostDevicePackets moves the host's uplink into a container, which is the neighbour of the outside then, and the
// host again after it.
//
// clause: P6 P24 P26 C11
func TestHostDevicePackets(t *testing.T) {
	s := newSite(t)
	s.sh("host", "ip link set wan alias 'to the outside'")
	const show = "ip -o addr show dev wan; ip -o link show dev wan"
	before := s.sh("host", show)
	r := s.device(`"device":"wan","dns":{"nameservers":["192.0.2.2"]}`)
	a := &attachment{id: "a1", netns: nstest.NewNS(t)}
	r.must("add", r.add(a))
	s.open("a1", a.netns)
	s.addr["a1"] = [2]string{a.text("IP4"), a.text("IP6")}
	s.serve("a1")
	for v := range 2 {
		at := func(name string) string { return net.JoinHostPort(s.addr[name][v], "80") }
		s.expect("to a neighbour", "a1", at("outside"), "outside")
		s.expect("to a host beyond", "a1", at("beyond"), "outside")
		s.expect("from a neighbour", "outside", at("a1"), "a1")
		s.ping("a1", s.addr["beyond"][v])
		s.ping("outside", s.addr["a1"][v])
	}
	if f := interfaceOf(t, a.prev, "eth0"); f.MTU != 1500 || f.Sandbox != a.netns || !strings.Contains(before, f.MAC) {
		t.Errorf("interface %+v, of\n%s", f, before)
	}
	r.must("check", r.check(a))

	other := &attachment{id: "a2", netns: nstest.NewNS(t)}
	wantCode(t, "a second container", r.add(other), spec.CodeConfig, `device: "wan": `+r.network()+`/a1/eth0 has it, as eth0, in `+a.netns)
	r.must("del of the second", r.del(other))
	r.must("check after another asked", r.check(a))

	r.must("status while it is in use", r.status())
	r.must("del", r.del(&attachment{id: "a1", netns: a.netns}))
	r.must("second del", r.del(a))
	after := ""
	if err := rtnl.Await(s.ns["host"], t.Context(), nstest.Patience(t), []uint{rtnl.LinkEvents, rtnl.IPv6AddrEvents},
		func() (bool, error) {
			after = s.sh("host", show) // without the kernel's own address, which comes later
			return fieldsOf(after) == fieldsOf(before), nil
		}); err != nil {
		t.Errorf("after DEL:\n%s\nbefore ADD:\n%s", after, before)
	}
	for v, addr := range []string{"192.0.2.2", "2001:db8::2"} {
		s.ping("host", addr)
		s.expect("from the host", "host", net.JoinHostPort(s.addr["outside"][v], "80"), "outside")
	}
}

// TestHostDeviceRollback: where the addresses are not to be had, the device is what it was.
//
// clause: P11
func TestHostDeviceRollback(t *testing.T) {
	s := newSite(t)
	r := s.device(`"device":"wan"`)
	r.chain.plugins[0] = `"type":"host-device","device":"wan","ipam":{"type":"host-local","ranges":[[{"subnet":"192.0.2.0/24","rangeStart":"192.0.2.5","rangeEnd":"192.0.2.5","gateway":"192.0.2.2"}]]}`
	show := "ip -o addr show dev wan; ip -o link show dev wan"
	before := s.sh("host", show)
	dir := "/var/lib/cni/networks/" + r.network()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "192.0.2.5"), []byte("other\r\neth0"), 0o644); err != nil {
		t.Fatal(err)
	}
	a := &attachment{id: "a1", netns: nstest.NewNS(t)}
	if err := r.add(a); err == nil || !strings.Contains(err.Error(), "192.0.2") {
		t.Fatalf("no address is free: %v", err)
	}
	if after := s.sh("host", show); fieldsOf(after) != fieldsOf(before) {
		t.Errorf("after the failed ADD:\n%s\nbefore:\n%s", after, before)
	}
	s.ping("host", "2001:db8::2")

	// Something of that name is in the container already: nothing happens.
	nstest.RunIn(t, a.netns, "ip", "link", "add", "eth0", "type", "bridge")
	err := r.add(a)
	if err == nil || !strings.Contains(err.Error(), "exists already") {
		t.Errorf("the name is taken: %v", err)
	}
	r.must("del", r.del(a))
	if out := nstest.RunIn(t, a.netns, "ip", "-br", "link"); !strings.Contains(out, "eth0") {
		t.Errorf("the container's own link is gone: %s", out)
	}
	if after := s.sh("host", show); fieldsOf(after) != fieldsOf(before) {
		t.Errorf("after the refused ADD:\n%s\nbefore:\n%s", after, before)
	}
}

// fieldsOf is what ip(8) says of a link without what settles by itself.
func fieldsOf(s string) string {
	var keep []string
	for _, line := range strings.Split(s, "\n") {
		if !strings.Contains(line, "scope link") {
			f := strings.Fields(strings.NewReplacer("NO-CARRIER,", "", ",LOWER_UP", "").Replace(line))
			for i, w := range f {
				if w == "qdisc" || w == "tentative" || w == "link-netnsid" || w == "state" {
					f[i] = ""
					if w != "tentative" && i+1 < len(f) {
						f[i+1] = ""
					}
				}
			}
			keep = append(keep, strings.Join(strings.Fields(strings.Join(f, " ")), " "))
		}
	}
	return strings.Join(keep, "\n")
}

// TestHostDeviceRace: of many who ask at once one gets it, and the others are told who.
//
// clause: P20
func TestHostDeviceRace(t *testing.T) {
	spare(t)
	r := newRunner(t, chain{"host-device", []string{`"type":"host-device","device":"ens9",` + hostLocal4}, nil})
	var all [8]attachment
	var errs [8]error
	var wg sync.WaitGroup
	for i := range all {
		all[i] = attachment{id: fmt.Sprint("r", i), netns: nstest.NewNS(t)}
		wg.Go(func() { errs[i] = r.add(&all[i]) })
	}
	wg.Wait()
	winner := slices.Index(errs[:], nil)
	if winner < 0 {
		t.Fatal("nobody got it:", errs)
	}
	for i := range all {
		if i != winner {
			wantCode(t, all[i].id, errs[i], spec.CodeConfig, `device: "ens9": `+r.network()+"/"+all[winner].id+"/eth0 has it, as eth0, in "+all[winner].netns)
			r.must("del of who did not get it", r.del(&all[i]))
		}
	}
	r.must("check", r.check(&all[winner]))
	r.must("del", r.del(&all[winner]))
}

// TestHostDeviceKilledDel kills DEL at each call that can change something. The next one finishes what it began.
//
// clause: P12
func TestHostDeviceKilledDel(t *testing.T) {
	spare(t)
	r := newRunner(t, chain{"host-device", []string{`"type":"host-device","device":"ens9",` + hostLocal4}, nil})
	warm := &attachment{id: "k", netns: nstest.NewNS(t)}
	r.must("add", r.add(warm))
	r.must("del", r.del(warm))
	clean := state(t)
	calls := "sendto,sendmsg,write,pwrite64,renameat,renameat2,rename,linkat,unlinkat,flock"
	last := nstest.Sample(t, 8, func(n int) (killed bool) {
		a := &attachment{id: "k", netns: nstest.NewNS(t)}
		r.must("add", r.add(a))
		nstest.RunIn(t, a.netns, "sh", "-ec",
			"ip link property del dev eth0 altname enp0s9; ip link property del dev eth0 altname "+r.network()+
				":k:eth0; ip link set eth0 address 02:00:00:00:00:0b mtu 1300 alias zz")
		_, err := r.run(0, "DEL", a, "", "strace", "-f", "-qqq", "-o", "/dev/null", "-e",
			"inject="+calls+fmt.Sprintf(":signal=SIGKILL:when=%d", n))
		if n%2 == 0 { // by then it may be gone with all that was left in it
			a.netns = ""
		}
		r.must(fmt.Sprintf("del after a kill at call %d", n), r.del(&attachment{id: "k", netns: a.netns}))
		if after := state(t); after != clean {
			t.Fatalf("a kill at call %d left\n%s\nbefore it was\n%s", n, after, clean)
		}
		if out := nstest.Run(t, "ip", "link", "show", "ens9"); !strings.Contains(out, "mtu 1450") ||
			!strings.Contains(out, "02:00:00:00:09:09") || !strings.Contains(out, ",UP") {
			t.Fatalf("a kill at call %d left %s", n, out)
		}
		return err != nil
	})
	if last == 0 {
		t.Error("DEL was not killed")
	}
}

// TestHostDeviceReference: what the reference's plugin moved into a container, ours gives back, and the other way
// round.
//
// clause: P12
func TestHostDeviceReference(t *testing.T) {
	spare(t)
	ours := newRunner(t, chain{"host-device", []string{`"cniVersion":"1.0.0","type":"host-device","device":"ens9",` + hostLocal4}, nil})
	theirs, newer := *ours, *ours
	theirs.dir = reference
	newer.chain.plugins = []string{strings.Replace(ours.chain.plugins[0], "1.0.0", "1.1.0", 1)}
	warm := &attachment{id: "w", netns: nstest.NewNS(t)}
	ours.must("add", ours.add(warm))
	ours.must("del", ours.del(warm))
	clean := state(t)
	for end, do := range map[string]func(a *attachment) error{
		"DEL": func(a *attachment) error { return ours.del(&attachment{id: a.id}) },
		"GC":  func(*attachment) error { return newer.gc() },
		"ADD": func(*attachment) error {
			b := &attachment{id: "b", netns: nstest.NewNS(t)}
			return errors.Join(ours.add(b), ours.del(b), newer.gc()) // which forgets the other one
		},
	} {
		a := &attachment{id: "r", netns: nstest.NewNS(t)}
		ours.must("our add", ours.add(a))
		ours.must("their check", theirs.check(a))
		ours.must("their del", theirs.del(a))
		if out := nstest.Run(t, "ip", "link", "show", "ens9"); strings.Contains(out, "UP") {
			t.Errorf("nothing to do is left: %s", out)
		}
		ours.must("our "+end, do(a))
		same(t, "our ADD, their DEL and our "+end, clean)
	}
	a := &attachment{id: "r", netns: nstest.NewNS(t)}
	ours.must("their add", theirs.add(a))
	for range 2 {
		ours.must("our del", ours.del(a))
		if out := nstest.Run(t, "ip", "link", "show", "ens9"); strings.Contains(out, "alias") ||
			!strings.Contains(out, "altname enp0s9") || !strings.Contains(out, "mtu 1450") {
			t.Errorf("after their ADD and our DEL: %s", out)
		}
	}
	if left, err := filepath.Glob("/var/lib/cni/networks/" + ours.network() + "/10.*"); err != nil || len(left) > 0 {
		t.Errorf("a lease is left: %v, %v", left, err)
	}
}

// TestHostDeviceUnknown: who names what is not there is told what is.
func TestHostDeviceUnknown(t *testing.T) {
	s := newSite(t)
	r := s.device("")
	mac := strings.Fields(s.sh("host", "ip -o link show wan | grep -o 'link/ether [^ ]*'"))[1]
	other := strings.Fields(s.sh("host",
		"ip link add spare type veth peer name wire; ip -o link show spare | grep -o 'link/ether [^ ]*'"))[1]
	for keys, say := range map[string]string{
		`"device":"wam"`:                    `device: "wam": no such device on the host; there is wan, wire, spare; did you mean "wan"?`,
		`"hwaddr":"02:00:00:0f:0f:0f"`:      `hwaddr: "02:00:00:0f:0f:0f": no such device on the host; there is `,
		`"pciBusID":"ffff:00:1f.6"`:         `pciBusID: "ffff:00:1f.6": no such device on the host`,
		`"kernelpath":"/sys/devices/ffff/"`: `kernelpath: "/sys/devices/ffff/": no such device on the host`,

		`"device":"wan","hwaddr":"` + other + `"`:           `hwaddr: "` + other + `": is spare, and device says wan; leave one of them out`,
		`"device":"wan","hwaddr":"02:00:00:0f:0f:0f"`:       `hwaddr: "02:00:00:0f:0f:0f": no such device on the host; there is `,
		`"hwaddr":"` + mac + `","pciBusID":"ffff:00:1f.6"`:  `pciBusID: "ffff:00:1f.6": no such device on the host`,
		`"device":"wan","runtimeConfig":{"deviceID":"x.y"}`: `runtimeConfig.deviceID: "x.y": no such device on the host`,
	} {
		r.chain.plugins[0] = `"type":"host-device",` + keys
		a := &attachment{id: "a1", netns: nstest.NewNS(t)}
		before := s.sh("host", "ip -o link; ip -o addr")
		wantCode(t, keys, r.add(a), spec.CodeConfig, say)
		if err := r.status(); !strings.Contains(say, " says ") && (err == nil || !strings.Contains(err.Error(), say)) {
			t.Errorf("%s: status: %v", keys, err)
		}
		r.must("del", r.del(a))
		if after := s.sh("host", "ip -o link; ip -o addr"); after != before {
			t.Errorf("%s: now\n%s\nbefore\n%s", keys, after, before)
		}
	}

	// Moved by hand.
	a := &attachment{id: "a1", netns: nstest.NewNS(t)}
	s.sh("host", "ip link set spare netns "+filepath.Base(a.netns)+" name net1")
	for keys, say := range map[string]string{
		`"device":"net1"`:            `device: "net1": is in the container already, as net1`,
		`"hwaddr":"` + other + `"`:   `hwaddr: "` + other + `": is in the container already, as net1`,
		`"device":"wan","hwaddr":""`: "",
	} {
		r.chain.plugins[0] = `"type":"host-device",` + keys
		if say != "" {
			wantCode(t, keys, r.add(a), spec.CodeConfig, say)
			continue
		}
		r.must("add", r.add(a))
		wantCode(t, "for the same container", r.as("eth1").add(a), spec.CodeConfig, `device: "wan": `+r.network()+`/a1/eth0 has it, as eth0, in `+a.netns)
		r.must("del", r.del(a))
	}
}

// as is the same runtime for another interface of a container.
func (r *runner) as(ifName string) *runner {
	other := *r
	other.ifName = ifName
	return &other
}
