package plugin_test

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/kernel/packet"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
)

// TestConflictDetection: a machine on the segment has an address that a pool is about to give away. ADD names it,
// undoes itself and gives the address back; the next one gets another.
//
// clause: P8 P10 P11 P13 I3
func TestConflictDetection(t *testing.T) {
	for _, c := range []struct{ kind, need, conf, setup string }{
		{"macvlan", "macvlan", `"master":"wan"`, ""},
		{"macvtap", "macvtap", `"master":"wan","mode":"vepa"`, ""},
		{"ipvlan", "ipvlan", `"master":"wan"`, ""},
		{"vlan", "vlan id 7", `"master":"wan","vlanId":7`, "vlan"},
		{"host-device", "", `"device":"wan"`, ""},
		{"bridge", "", `"bridge":"lan"`, "ip addr flush dev wan; ip link add lan up type bridge; ip link set wan master lan"},
	} {
		t.Run(c.kind, func(t *testing.T) {
			t.Parallel()
			if need := strings.Fields(c.need); len(need) > 0 {
				nstest.Need(t, need[0], need[1:]...)
			}
			s := newSite(t)
			r := s.neighbours(`"type":"` + c.kind + `",` + c.conf + `,"conflictDetection":"probe"`)
			on := "eth0"
			if c.setup == "vlan" {
				on = "eth0.7"
				s.sh("outside", "ip link add link eth0 name eth0.7 up type vlan id 7; ip addr flush dev eth0; ip addr add 192.0.2.2/24 dev eth0.7; ip addr add 2001:db8::2/64 dev eth0.7 nodad")
			} else if c.setup != "" {
				s.sh("host", c.setup)
			}
			there, err := rtnl.LinkByName(s.ns["outside"], on)
			r.must("link", err)
			warm := &attachment{id: "w", netns: nstest.NewNS(t)}
			r.must("add", r.add(warm))
			r.must("del", r.del(warm))
			// The other kinds are tried at the same time, so only what is of this network counts.
			hash := identity.NetworkHash(r.network())
			state := func() string {
				return s.sh("host", `ip -br link | sed 's/ .*//'; ip -br addr | sed 's/@[^ ]*//; s/fe80[^ ]*//; s/ \(UP\|DOWN\|UNKNOWN\) *//; s/  *$//'; ip route | sed 's/ linkdown//'`) +
					nstest.Run(t, "sh", "-c", fmt.Sprintf(`find /var/lib/cni/networks/%s /run/cni -type f | grep '%[1]s\|%x' | grep -v 'last_reserved\|/lock$' | sort`, r.network(), hash))
			}
			clean := state()
			same := func(what string) {
				t.Helper()
				if is := state(); is != clean {
					t.Errorf("%s left\n%s\nit was\n%s", what, is, clean)
				}
			}
			a := &attachment{id: "a1", netns: nstest.NewNS(t)}
			for _, round := range []struct{ has, taken string }{ // the first ones, 192.0.2.100 and 2001:db8::100, are used
				{"192.0.2.101/24", "192.0.2.101"},
				{"2001:db8::102/64", "2001:db8::102"},
				{"192.0.2.103/24 2001:db8::103/64", "192.0.2.103"},
			} {
				for _, addr := range strings.Fields(round.has) {
					s.sh("outside", "ip addr add "+addr+" dev "+on+map[bool]string{true: " nodad"}[strings.Contains(addr, ":")])
				}
				wantCode(t, round.has, r.add(a), spec.CodeTryAgain,
					"address "+round.taken+": "+there.MAC.String()+" on the link has it")
				same("a conflict")
				if out := nstest.RunIn(t, a.netns, "ip", "-br", "link"); strings.Contains(out, "eth0") {
					t.Errorf("a conflict left %s", out)
				}
				r.must("del after a refused add", r.del(&attachment{id: "a1", netns: a.netns}))
				same("del after a conflict")
			}
			r.must("add again", r.add(a))
			r.must("check", r.check(a))
			s.open("a1", a.netns)
			for v := range 2 {
				s.expect("to a neighbour", "a1", net.JoinHostPort(s.addr["outside"][v], "80"), "outside")
			}
			r.must("del", r.del(a))
			same("del")

			// Killed while it asks.
			a = &attachment{id: "a1", netns: nstest.NewNS(t)}
			n, err := packet.ListenNeighbours(s.ns["outside"], there, false)
			r.must("listen", err)
			defer n.Close()
			file, killed := t.TempDir()+"/pid", make(chan error, 1)
			go func() {
				killed <- func() error {
					for {
						c, ok, err := n.Next(t.Context(), nstest.Deadline(t))
						if err != nil || !ok {
							return fmt.Errorf("nobody asked: %w", err)
						}
						if !c.Probe {
							continue
						}
						b, err := os.ReadFile(file)
						if err != nil {
							return err
						}
						pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
						if err != nil {
							return err
						}
						return syscall.Kill(pid, syscall.SIGKILL)
					}
				}()
			}()
			if err := r.add(a, "sh", "-ec", `echo $$ > `+file+`; exec "$@"`, "sh"); err == nil || !strings.Contains(err.Error(), "killed") {
				t.Errorf("killed while it asks: %v", err)
			}
			r.must("kill", <-killed)
			r.must("del after a kill", r.del(&attachment{id: "a1", netns: a.netns}))
			same("del after a kill")
		})
	}
}

// TestConflictOfHost: a container on the host's link does not get the host's own address.
func TestConflictOfHost(t *testing.T) {
	for _, kind := range []string{"macvlan", "ipvlan"} {
		t.Run(kind, func(t *testing.T) {
			nstest.Need(t, kind)
			s := newSite(t)
			r := s.neighbours(`"type":"` + kind + `","conflictDetection":"probe"`)
			s.sh("host", "ip route add default via 192.0.2.2; ip addr add 192.0.2.100/24 dev wan")
			a := &attachment{id: "a1", netns: nstest.NewNS(t)}
			wantCode(t, "the host's address", r.add(a), spec.CodeTryAgain,
				"address 192.0.2.100: wan itself, on the host, has it")
			r.must("add again", r.add(a))
			r.must("del", r.del(a))
		})
	}
}
