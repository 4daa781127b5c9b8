package addr

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/kernel/packet"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/resource/link/linktest"
	"github.com/fairlead-cni/fairlead/resource/sysctl"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// A lan is a bridge on the host that the container is plugged into, and a neighbour behind a port that nobody here
// made.
type lan struct {
	*kernel.World
	neighbour *kernel.NS
	mac       string // of the neighbour
	port      string // the host's end of the container's cable
}

func newLAN(t *testing.T) *lan {
	t.Helper()
	l := &lan{World: contract.NewWorld(t), neighbour: contract.OpenNS(t), mac: "02:00:00:00:00:77"}
	contract.Host(t, l.World, "ip link add uplink type veth peer name eth0 address %s netns %s", l.mac, l.neighbour.Path)
	v := linktest.Veth(contract.Owner, "lan")
	contract.Must(t, l.World, link.Bridge{Name: "lan"}, v)
	contract.Host(t, l.World, "ip link set uplink up master lan")
	nstest.RunIn(t, l.neighbour.Path, "ip", "link", "set", "eth0", "up")
	contract.Must(t, l.World, Announce{Link: "eth0", Port: v.Host})
	for ns, link := range map[*kernel.NS]string{l.Host: "uplink", l.neighbour: "eth0"} {
		if err := resource.WaitCarrier(t.Context(), resource.Host, ns, link, resource.KernelLimit); err != nil {
			t.Fatal(err)
		}
	}
	l.port = v.Host
	return l
}

func (l *lan) has(t *testing.T, addrs ...string) {
	t.Helper()
	for _, a := range addrs {
		nstest.RunIn(t, l.neighbour.Path, "ip", "addr", "add", a, "dev", "eth0", "nodad")
	}
}

// claim is what a plan does for addresses where conflicts are looked for.
func (l *lan) claim(ctx context.Context, addrs ...string) error {
	var all []netip.Prefix
	var p4, p6 plan.Plan
	for _, a := range addrs {
		prefix := netip.MustParsePrefix(a)
		all = append(all, prefix)
		if prefix.Addr().Is6() {
			p6 = append(p6, Addr{Link: "eth0", Prefix: prefix})
		} else {
			p4 = append(p4, Addr{Link: "eth0", Prefix: prefix})
		}
	}
	if p6 != nil {
		p6 = append(plan.Plan{sysctl.EnableIPv6{Link: "eth0", DAD: true}}, p6...)
	}
	p := append(append(p6, Probe{Link: "eth0", Addrs: all, Port: l.port}), p4...)
	for _, r := range append(p, Announce{Link: "eth0", Addrs: all, Port: l.port}) {
		if _, err := r.Ensure(ctx, l.World); err != nil {
			return fmt.Errorf("%v: %w", r, err)
		}
	}
	return nil
}

// refused is that an error is what a runtime is told of an address that somebody has.
func refused(t *testing.T, what string, err error, say ...string) {
	t.Helper()
	var e *spec.Error
	if !errors.As(err, &e) || e.Code != spec.CodeTryAgain {
		t.Errorf("%s: %v, want code %d", what, err, spec.CodeTryAgain)
		return
	}
	for _, s := range say {
		if !strings.Contains(err.Error(), s) || strings.Contains(s, "the link") &&
			!strings.Contains(e.Hint, "find it by its MAC") {
			t.Errorf("%s: %v, want %q", what, err, s)
		}
	}
}

// Who has an address keeps it, and is named: of either family, and of several addresses.
//
// clause: P8 P11
func TestConflict(t *testing.T) {
	for name, tt := range map[string]struct{ has, want, taken string }{
		"IPv4":                 {"10.9.0.5/24", "10.9.0.5/24", "10.9.0.5"},
		"IPv6":                 {"fd09::5/64", "fd09::5/64", "fd09::5"},
		"IPv4 of both":         {"10.9.0.5/24", "fd09::5/64 10.9.0.5/24", "10.9.0.5"},
		"IPv6 of both":         {"fd09::5/64", "10.9.0.5/24 fd09::5/64", "fd09::5"},
		"one of several":       {"10.9.0.7/24", "10.9.0.5/24 10.9.0.6/24 10.9.0.7/24", "10.9.0.7"},
		"of another subnet":    {"10.9.0.5/32", "10.9.0.5/16", "10.9.0.5"},
		"the bridge's gateway": {"", "10.9.0.1/24", "10.9.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLAN(t)
			who := l.mac
			if tt.has == "" {
				contract.Must(t, l.World, Gateway{Link: "lan", Prefix: netip.MustParsePrefix(tt.taken + "/24")})
				br, err := rtnl.LinkByName(l.Host, "lan")
				if err != nil {
					t.Fatal(err)
				}
				who = br.MAC.String()
			} else {
				l.has(t, tt.has)
			}
			refused(t, name, l.claim(t.Context(), strings.Fields(tt.want)...),
				"address "+tt.taken+": "+who+" on the link has it")
			if out := contract.Container(t, l.World, "ip -4 addr show dev eth0"); strings.Contains(out, tt.taken) {
				t.Errorf("it has it all the same: %s", out)
			}
		})
	}
}

// Who wants an address at the same time is a conflict too.
func TestConflictOfTwoWhoWant(t *testing.T) {
	for _, want := range []string{"10.9.0.5/24", "fd09::5/64"} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			l := newLAN(t)
			link, err := rtnl.LinkByName(l.neighbour, "eth0")
			if err != nil {
				t.Fatal(err)
			}
			addr := netip.MustParsePrefix(want).Addr()
			n, err := packet.ListenNeighbours(l.neighbour, link, addr.Is6())
			if err != nil {
				t.Fatal(err)
			}
			done, stopped := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(stopped)
				for tick := time.NewTicker(100 * time.Millisecond); ; {
					select {
					case <-done:
						tick.Stop()
						return
					case <-tick.C:
						if err := n.Ask(addr); err != nil {
							t.Error(err)
						}
					}
				}
			}()
			refused(t, want, l.claim(t.Context(), want), "address "+addr.String()+": "+l.mac+" on the link is about to have it")
			close(done)
			<-stopped
			n.Close()
		})
	}
}

// What is asked is what RFC 5227 says, and a second Ensure asks nobody.
func TestProbe(t *testing.T) {
	l := newLAN(t)
	fd := -1
	if err := l.neighbour.Do(func() (err error) {
		proto := binary.NativeEndian.Uint16([]byte{unix.ETH_P_ARP >> 8, unix.ETH_P_ARP & 0xff})
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(proto))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	probes := func() (n int) {
		t.Helper()
		mac := identity.MAC("cont", contract.Owner).String()
		for buf := make([]byte, 100); ; {
			size, _, err := unix.Recvfrom(fd, buf, 0)
			if err != nil {
				return n
			}
			p := buf[:size]
			if from := netip.AddrFrom4([4]byte(p[28:32])); !from.IsUnspecified() {
				continue // announced, afterwards
			}
			n++
			// To all, from nobody, with the sender's MAC, for no MAC.
			if got := fmt.Sprintf("%x %x %x", p[:6], p[6:12],
				p[12:42]); got != fmt.Sprintf("ffffffffffff %s 08060001080006040001%s00000000%012x%x",
				strings.ReplaceAll(mac, ":", ""), strings.ReplaceAll(mac, ":", ""), 0, []byte{10, 9, 0, 5}) {
				t.Errorf("an ARP packet of %s", got)
			}
		}
	}
	begin := time.Now()
	if err := l.claim(t.Context(), "fd09::5/64", "10.9.0.5/24"); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took < time.Second { // 2.2 s, on a machine that does nothing else
		t.Errorf("it took %v", took)
	}
	if n := probes(); n != 3 {
		t.Errorf("%d probes", n)
	}
	before := contract.State(t, l.World)
	if err := l.claim(t.Context(), "10.9.0.5/24", "fd09::5/64"); err != nil {
		t.Error(err)
	}
	if n := probes(); n != 0 {
		t.Errorf("%d probes for what it has", n)
	}
	if after := contract.State(t, l.World); after != before {
		t.Errorf("again:%s", contract.Difference(before, after))
	}

	// Who is told to stop stops.
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := l.claim(ctx, "10.9.0.6/24"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("claim of one that is told to stop: %v", err)
	}
}

// A link that stands on another does not hear it, and nobody is asked where nobody can be.
//
// clause: K13
func TestProbeBelow(t *testing.T) {
	nstest.Need(t, "macvlan")
	w := contract.NewWorld(t)
	other := contract.OpenNS(t)
	contract.Host(t, w, "ip link add ens3 up type veth peer name eth0 netns %s", other.Path)
	contract.Host(t, w, "ip addr add 10.9.0.1/24 dev ens3")
	contract.Host(t, w, "ip addr add fd09::1/64 dev ens3 nodad")
	m := link.Macvlan{Stacked: linktest.Stacked(contract.Owner, "macvlan", "ens3")}
	contract.Must(t, w, m)
	p := Probe{Link: "eth0", On: m.Master, Addrs: []netip.Prefix{netip.MustParsePrefix("10.9.0.1/24")}}
	_, err := p.Ensure(t.Context(), w)
	refused(t, "the host's", err, "address 10.9.0.1: ens3 itself, on the host, has it")
	p.Addrs = []netip.Prefix{netip.MustParsePrefix("10.9.0.2/24"), netip.MustParsePrefix("fd09::1/64")}
	_, err = p.Ensure(t.Context(), w)
	refused(t, "the host's", err, "address fd09::1: ens3 itself, on the host, has it")

	p.Addrs = p.Addrs[:1]
	_, err = p.Ensure(t.Context(), w)
	refused(t, "no carrier", err, `conflictDetection: "probe": eth0 carries nothing, so no neighbour can be asked for 10.9.0.2`)
	nstest.RunIn(t, other.Path, "ip", "link", "set", "eth0", "up")
	if changed, err := p.Ensure(t.Context(), w); changed || err != nil {
		t.Errorf("changed %v, error %v", changed, err)
	}
	// By the link below, as an ipvlan does it.
	nstest.RunIn(t, other.Path, "ip", "addr", "add", "10.9.0.3/24", "dev", "eth0")
	contract.Container(t, w, "ip link set eth0 down")
	p.ByOn, p.Addrs[0] = true, netip.MustParsePrefix("10.9.0.3/24")
	_, err = p.Ensure(t.Context(), w)
	refused(t, "by the link below", err, "address 10.9.0.3: ", " on the link has it")
	p.Addrs[0] = netip.MustParsePrefix("10.9.0.2/24")
	if changed, err := p.Ensure(t.Context(), w); changed || err != nil {
		t.Errorf("changed %v, error %v", changed, err)
	}

	contract.Container(t, w, "ip tuntap add tun0 mode tun")
	contract.Container(t, w, "ip link set tun0 up")
	if l, err := rtnl.LinkByName(w.Container, "tun0"); err != nil {
		t.Error(err)
	} else if _, err := packet.ListenNeighbours(w.Container, l, false); err == nil ||
		!strings.Contains(err.Error(), "link tun0 is no Ethernet") {
		t.Errorf("without Ethernet: %v", err)
	}
}

// The kernel asks for IPv6 addresses even where the host's default is not to.
func TestDAD(t *testing.T) {
	l := newLAN(t)
	l.has(t, "fd09::5/64")
	none := contract.In(l.World, "sysctl -qw net.ipv6.conf.eth0.dad_transmits=0")
	none(t)
	asked := func(t testing.TB) string {
		conf := "net/ipv6/conf/eth0/"
		return contract.State(t, l.World) + contract.Sysctl(t, l.Container, conf+"accept_dad") +
			contract.Sysctl(t, l.Container, conf+"dad_transmits")
	}
	contract.Terms{State: asked}.Test(t, l.World, sysctl.EnableIPv6{Link: "eth0", DAD: true},
		contract.Break("never", none, "dad_transmits is 0, want 1"),
		contract.Break("off", contract.In(l.World, "sysctl -qw net.ipv6.conf.eth0.accept_dad=0"), "accept_dad is 0, want 1"))
	none(t)
	refused(t, "IPv6", l.claim(t.Context(), "fd09::5/64"), l.mac)
}
