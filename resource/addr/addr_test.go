package addr

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/resource/link/linktest"
)

// clause: P14
func TestAddr(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Must(t, w, linktest.Veth(contract.Owner, ""))
	for _, a := range []Addr{
		{Link: "eth0", Prefix: netip.MustParsePrefix("10.1.2.5/24")},
		{Link: "eth0", Prefix: netip.MustParsePrefix("10.1.2.6/32"), NoPrefixRoute: true},
		{Link: "eth0", Prefix: netip.MustParsePrefix("fd00::5/64"), NoDAD: true},
		{Where: resource.Host, Link: identity.LinkName("veth", contract.Owner), Prefix: netip.MustParsePrefix("fd00::1/64"),
			NoPrefixRoute: true},
	} {
		run := contract.In
		if a.Where == resource.Host {
			run = contract.On
		}
		breakers := []contract.Breakage{contract.Break("gone", run(w, "ip addr del "+a.Prefix.String()+" dev "+a.Link),
			"is missing")}
		if !a.NoPrefixRoute {
			breakers = append(breakers, contract.Break("length", run(w, "ip addr del "+a.Prefix.String()+" dev "+a.Link,
				"ip addr add "+a.Prefix.Addr().String()+"/25 dev "+a.Link), "prefix length is 25"))
		}
		contract.Terms{Repair: func(t *testing.T) {
			run(w, "ip addr flush dev "+a.Link+" scope global")(t)
			contract.Must(t, w, a)
		}}.Test(t, w, a, breakers...)
	}
	t.Run("of another length", func(t *testing.T) {
		contract.Must(t, w, Addr{Link: "eth0", Prefix: netip.MustParsePrefix("fd00:2::1/64"), NoDAD: true})
		changed, err := Addr{Link: "eth0", Prefix: netip.MustParsePrefix("fd00:2::1/48")}.Ensure(t.Context(), w)
		if changed || err == nil || !strings.Contains(err.Error(), "prefix length is 64") {
			t.Errorf("changed %v, error %v", changed, err)
		}
	})
	t.Run("somebody else has it", func(t *testing.T) {
		a := Addr{Link: "eth0", Prefix: netip.MustParsePrefix("fd00:1::1/64")}
		contract.Must(t, w, Addr{Where: resource.Host, Link: identity.LinkName("veth", contract.Owner), Prefix: a.Prefix,
			NoDAD: true}, a)
		_, err := Announce{Link: "eth0", Addrs: []netip.Prefix{a.Prefix},
			Port: identity.LinkName("veth", contract.Owner)}.Ensure(t.Context(), w)
		refused(t, "announce", err, "address fd00:1::1: ", " on the link has it")
		if err := a.Verify(t.Context(), w); err == nil || !strings.Contains(err.Error(), "dadfailed") {
			t.Errorf("verify: %v", err)
		}
	})
}

func TestGateway(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Must(t, w, link.Bridge{Name: "cni0"})
	for _, p := range []string{"10.1.0.1/16", "fd00::1/64"} {
		g := Gateway{Link: "cni0", Prefix: netip.MustParsePrefix(p)}
		fix := func(t *testing.T) {
			if changed, err := g.Traits().Fix(t.Context(), w); !changed || err != nil {
				t.Errorf("fix: %v, %v", changed, err)
			}
		}
		contract.Terms{Repair: fix}.Test(t, w, g,
			contract.Break("gone", contract.On(w, "ip addr del "+p+" dev cni0"), "is missing"),
			contract.Break("no route to the subnet", contract.On(w, "ip route del "+g.Prefix.Masked().String()+" dev cni0"),
				"route "+g.Prefix.Masked().String()+" dev cni0 is missing"))
	}
	for _, c := range []struct {
		have, want string
		conflict   bool
	}{
		{"10.1.0.1/16", "10.2.0.1/16", true},
		{"10.1.0.1/16", "10.1.0.1/24", true},
		{"10.1.0.1/16", "10.1.0.2/16", true},
		{"fd00::1/64", "fd00::2/64", true},
		{"fd00::1/64", "fd00::1/48", true},
		{"fd00::1/64", "fd00:0:0:1::1/64", false},
		{"10.1.0.1/16", "fd00::1/64", false},
	} {
		t.Run(c.have+" "+c.want, func(t *testing.T) {
			w := contract.NewWorld(t)
			contract.Host(t, w, "ip link add cni0 type bridge")
			contract.Host(t, w, "ip link set cni0 up")
			contract.Host(t, w, "ip addr add %s dev cni0", c.have)
			before := contract.State(t, w)
			g := Gateway{Link: "cni0", Prefix: netip.MustParsePrefix(c.want)}
			_, err := g.Ensure(t.Context(), w)
			if (err != nil) != c.conflict {
				t.Fatalf("conflict %v, want %v", err, c.conflict)
			}
			if !c.conflict {
				return
			}
			for _, s := range []string{c.have, c.want, "ip addr del " + c.have + " dev cni0", "forceAddress"} {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%v: does not say %s", err, s)
				}
			}
			if err := g.Verify(t.Context(), w); err == nil || !strings.Contains(err.Error(), c.have) {
				t.Errorf("verify: %v", err)
			}
			if after := contract.State(t, w); after != before {
				t.Errorf("changed: %s", contract.Difference(before, after))
			}
			g.Force = true
			contract.Test(t, w, plan.Shared(g)) // what it replaces does not come back
			if out := contract.Host(t, w, "ip -o addr show dev cni0 scope global"); strings.Contains(out, c.have+" ") ||
				!strings.Contains(out, c.want+" ") {
				t.Errorf("forced: %s", out)
			}
		})
	}
}

// TestAddrWaits has the waits for an IPv6 address end as its state says, whatever the load: one that the kernel is sure
// of is no error where its route comes late, one that it still asks for is, and so is one that is gone. The host waits
// for none of its own.
func TestAddrWaits(t *testing.T) {
	const soon = 10 * time.Millisecond
	w := contract.NewWorld(t)
	contract.Wire(t, w)
	// the other end is down, so nobody can be asked
	contract.Container(t, w, "ip link add lonely type veth peer name lonely1")
	contract.Container(t, w, "ip link set lonely up")
	for _, a := range []string{"fd00:5::1/64 dev eth0 nodad", "fd00:5::2/64 dev eth0 nodad", "fd00:6::1/64 dev lonely"} {
		contract.Container(t, w, "ip addr add %s", a)
	}
	at := netip.MustParseAddr
	for _, a := range []string{"fd00:5::1", "fd00:5::2"} {
		if err := usable(t.Context(), w.Container, "eth0", at(a), resource.KernelLimit); err != nil {
			t.Error(err)
		}
	}
	contract.Container(t, w, "ip -6 route del local fd00:5::2 dev eth0 table local")
	for _, c := range []struct {
		link, addr, usable, settled string
	}{
		{"eth0", "fd00:5::1", "", ""},
		{"eth0", "fd00:5::2", "", ""},
		{"lonely", "fd00:6::1", "deadline exceeded", "deadline exceeded"},
		{"eth0", "fd00:5::3", "is missing", "is missing"},
		{"eth0", "10.1.0.2", "", ""},
	} {
		for what, got := range map[string]struct {
			err  error
			want string
		}{
			"usable":  {usable(t.Context(), w.Container, c.link, at(c.addr), soon), c.usable},
			"settled": {AwaitDAD(t.Context(), w.Container, c.link, at(c.addr), soon), c.settled},
		} {
			if got.want == "" && got.err != nil || got.want != "" &&
				(got.err == nil || !strings.Contains(got.err.Error(), got.want)) {
				t.Errorf("%s %s: %v, want %q", what, c.addr, got.err, got.want)
			}
		}
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	contract.Host(t, w, "ip link add cni0 up type bridge")
	for _, r := range []plan.Resource{
		Gateway{Link: "cni0", Prefix: netip.MustParsePrefix("fd00:7::1/64")},
		Addr{Where: resource.Host, Link: "cni0", Prefix: netip.MustParsePrefix("fd00:8::1/128"), NoDAD: true},
	} {
		if changed, err := r.Ensure(over, w); !changed || err != nil {
			t.Errorf("%v: changed %v, %v", r, changed, err)
		}
	}
}
