package plugin_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// TestRemoveWhenEmpty is who keeps a bridge, and what goes with it when nobody does.
//
// clause: P11 P12 P22
func TestRemoveWhenEmpty(t *testing.T) {
	for _, c := range []chain{
		{name: "empty-strict", plugins: []string{`"type":"bridge","bridge":"br7","removeWhenEmpty":true,"isGateway":true,"ipMasq":true,` + hostLocal, `"type":"firewall","backend":"nftables","ingressPolicy":"strict"`}},
		{name: "empty-iptables", plugins: []string{`"type":"bridge","bridge":"br7","removeWhenEmpty":true,"isGateway":true,"ipMasq":true,"ipMasqBackend":"iptables",` + hostLocal, `"type":"firewall","backend":"iptables","ingressPolicy":"isolated"`}},
		{name: "empty-vlan", plugins: []string{`"type":"bridge","bridge":"br7","removeWhenEmpty":true,"isGateway":true,"access":100,` + hostLocal, `"type":"firewall","backend":"nftables","ingressPolicy":"isolated"`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "empty-vlan" {
				needBridgeVLANs(t)
			}
			r := newRunner(t, c)
			r.host = nstest.NewNS(t)
			sh := func(script string) string { return nstest.RunIn(t, r.host, "sh", "-ec", script) }
			sh("ip link set lo up")
			all := func() string {
				return sh(`ip -br link; ip rule; ip -6 rule; ip route show table all; ip -6 route show table all; nft list ruleset; iptables-save; ip6tables-save`)
			}
			left := func(when string) {
				t.Helper()
				for line := range strings.Lines(all()) {
					if strings.Contains(line, "br7") {
						t.Errorf("%s: left: %s", when, line)
					}
				}
			}
			there := func(when string) {
				t.Helper()
				if !strings.Contains(sh("ip -br link"), "br7") {
					t.Fatalf("%s: the bridge is gone", when)
				}
			}
			fresh := func(id string) *attachment { return &attachment{id: id, netns: nstest.NewNS(t)} }

			a, b := fresh("a"), fresh("b")
			r.must("add", r.add(a))
			r.must("add", r.add(b))
			r.must("del", r.del(a))
			there("one of two was deleted")
			r.must("check", r.check(b))
			r.must("del", r.del(b))
			left("both were deleted")
			r.must("del again", r.del(b))

			a, b = fresh("a"), fresh("b")
			r.must("add", r.add(a))
			r.must("add", r.add(b))
			for _, x := range []*attachment{a, b} {
				there("a namespace vanished")
				if err := nstest.RemoveNS(x.netns); err != nil {
					t.Fatal(err)
				}
				r.must("del without a namespace and a result", r.del(&attachment{id: x.id, netns: x.netns}))
			}
			left("both vanished")

			a, b = fresh("a"), fresh("b")
			r.must("add", r.add(a))
			r.must("add", r.add(b))
			r.must("gc", r.gc("b"))
			there("gc of one of two")
			r.must("check", r.check(b))
			r.must("gc", r.gc())
			left("gc")

			a = fresh("a")
			r.must("add", r.add(a))
			sh("ip link set br7 alias ''")
			if err := nstest.RemoveNS(a.netns); err != nil {
				t.Fatal(err)
			}
			r.must("gc", r.gc())
			left("gc of a bridge that is not marked yet")

			a = fresh("a")
			r.must("add", r.add(a))
			sh("ip link add ens3 type veth peer name wire; ip link set ens3 master br7")
			r.must("del", r.del(a))
			there("it has somebody else's port")
			r.must("gc", r.gc())
			there("it has somebody else's port, gc")
			sh("ip link del ens3")
			r.must("gc", r.gc())
			left("gc, with the port gone")

			link := "br7"
			if c.name == "empty-vlan" {
				link = "br7.100"
			}
			for _, addr := range []string{"10.9.9.9/24", "fd09::9/64"} {
				a = fresh("a")
				r.must("add", r.add(a))
				sh("ip addr add " + addr + " dev " + link)
				r.must("del", r.del(a))
				there("it has somebody else's address " + addr)
				r.must("gc", r.gc())
				there("it has somebody else's address, gc")
				sh("ip addr del " + addr + " dev " + link)
				r.must("gc", r.gc())
				left("gc, with the address gone")
			}

			sh("ip link add br7 type bridge")
			if c.name == "empty-vlan" {
				sh("ip link set br7 type bridge vlan_filtering 1")
			}
			a = fresh("a")
			r.must("add", r.add(a))
			r.must("del", r.del(a))
			there("somebody else made it")
			r.must("gc", r.gc())
			there("somebody else made it, gc")
			sh("ip link del br7; ip link del br7.100 2>/dev/null || true")
			r.must("gc", r.gc()) // the policies of links that are gone

			// Nothing of an ADD that fails, whose addresses are spent.
			spent := strings.Replace(hostLocal, "10.77.0.0/24", "10.79.0.0/30", 1)
			r.chain.plugins[0] = strings.Replace(r.chain.plugins[0], hostLocal, spent, 1)
			r.chain.name += "-spent"
			a, b = fresh("a"), fresh("b")
			r.must("add", r.add(a))
			if err := r.add(b); err == nil {
				t.Error("there was an address")
			}
			there("an ADD failed")
			r.must("check", r.check(a))
			// its container dies, and there is no DEL
			sh("ip link del $(ip -br link show type veth | sed -n 's/@.*//p' | grep -v 'br7\\|vlan' | head -1)")
			if err := r.add(b); err == nil {
				t.Error("there was an address")
			}
			r.must("del of what failed", r.del(b))
			left("an ADD failed, and it was the only one")
			r.must("del", r.del(a))
			left("del")
		})
	}
}

// TestRemoveWhenEmptyKilled kills DEL when it deletes a record of the bridge's gateways. The record of a VLAN's gateway goes
// before the bridge, others after it. The next DEL, or garbage collection, leaves no such record and no bridge.
//
// clause: P12 P22
func TestRemoveWhenEmptyKilled(t *testing.T) {
	for _, vlan := range []string{"", `"access":100,`} {
		nstest.Apart(t, "vlan"+strconv.FormatBool(vlan != ""), func(t *testing.T) {
			if vlan != "" {
				needBridgeVLANs(t)
			}
			r := newRunner(t, chain{name: "empty-killed", plugins: []string{`"type":"bridge","bridge":"brkill","removeWhenEmpty":true,"isGateway":true,` + vlan + hostLocal}})
			var before []string // of other bridges, where all tests run in one host
			records := func() []string {
				all, err := filepath.Glob("/run/cni/fairlead/memory/gateway*")
				if err != nil {
					t.Fatal(err)
				}
				return slices.DeleteFunc(all, func(file string) bool { return slices.Contains(before, file) })
			}
			before = records()
			for _, next := range []string{"DEL", "GC"} {
				a := &attachment{id: "k", netns: nstest.NewNS(t)}
				r.must("add", r.add(a))
				all := records()
				r.must("del", r.del(a))
				for _, file := range all {
					r.must("add", r.add(a))
					if _, err := r.run(0, "DEL", a, "", "strace", "-f", "-qqq", "-o", "/dev/null", "-P", file, "-e",
						"inject=unlinkat:signal=SIGKILL"); err == nil {
						t.Fatalf("DEL was not killed at %s", file)
					}
					if next == "GC" {
						r.must("gc", r.gc())
					} else {
						r.must("del", r.del(a))
					}
					if left := records(); len(left) > 0 {
						t.Errorf("after a kill at %s and %s there is %v", file, next, left)
					}
					if links := nstest.Run(t, "ip", "-br", "link"); strings.Contains(links, "brkill") {
						t.Errorf("after a kill at %s and %s there is\n%s", file, next, links)
					}
				}
				if len(all) < 3 {
					t.Errorf("a bridge with two gateways has the records %v", all)
				}
			}
		})
	}
}

// TestRemoveWhenEmptyRace adds and deletes at once. Who comes while the bridge goes has one that works.
//
// clause: P12 P20
func TestRemoveWhenEmptyRace(t *testing.T) {
	r := newRunner(t, chain{name: "empty-race", plugins: []string{`"type":"bridge","bridge":"br7","removeWhenEmpty":true,"isGateway":true,` + hostLocal}})
	r.host = nstest.NewNS(t)
	nstest.RunIn(t, r.host, "ip", "link", "set", "lo", "up")
	var wg sync.WaitGroup
	for i := range 3 {
		netns := nstest.NewNS(t)
		wg.Go(func() {
			for n := range 25 {
				a := &attachment{id: fmt.Sprint("c", i), netns: netns}
				if err := r.add(a); err != nil {
					t.Errorf("%s, round %d: add: %v", a.id, n, err)
				} else if err := r.check(a); err != nil {
					t.Errorf("%s, round %d: check: %v", a.id, n, err)
				}
				if err := r.del(a); err != nil {
					t.Errorf("%s, round %d: del: %v", a.id, n, err)
				}
			}
		})
	}
	wg.Wait()
	if links := nstest.RunIn(t, r.host, "ip", "-br", "link"); strings.Contains(links, "br7") ||
		strings.Contains(links, "veth") {
		t.Errorf("left:\n%s", links)
	}
}
