package link

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

func TestBridge(t *testing.T) {
	w := contract.NewWorld(t)
	b := Bridge{Name: "cni0", MTU: 1400, Promisc: true}
	contract.Test(t, w, b,
		contract.Break("down", contract.On(w, "ip link set cni0 down"), "state is down"),
		contract.Break("promisc", contract.On(w, "ip link set cni0 promisc off"), "promisc is false"),
		contract.Break("gone", contract.On(w, "ip link del cni0"), "does not exist"),
		contract.Break("accept_ra", contract.On(w, "ip link set cni0 down", "sysctl -qw net.ipv6.conf.cni0.accept_ra=1"),
			"accept_ra is 1"),
	)
	if v := contract.Sysctl(t, w.Host, "net/ipv6/conf/cni0/accept_ra"); v != "0" {
		t.Errorf("accept_ra is %s", v)
	}
	if out := contract.Host(t, w, "ip link show cni0"); !strings.Contains(out, "mtu 1400") {
		t.Errorf("mtu: %s", out)
	}

	t.Run("its address does not float", func(t *testing.T) {
		before, _ := rtnl.LinkByName(w.Host, "cni0")
		contract.Host(t, w, "ip link add p0 master cni0 address 00:00:00:00:00:02 type veth peer name p1")
		after, _ := rtnl.LinkByName(w.Host, "cni0")
		if before.MAC.String() != after.MAC.String() {
			t.Errorf("%v became %v", before.MAC, after.MAC)
		}
	})
	t.Run("somebody else's keeps its accept_ra and its MTU", func(t *testing.T) {
		contract.Host(t, w, "ip link add br0 mtu 1300 type bridge")
		contract.Must(t, w, Bridge{Name: "br0", MTU: 1500})
		l, _ := rtnl.LinkByName(w.Host, "br0")
		if v := contract.Sysctl(t, w.Host, "net/ipv6/conf/br0/accept_ra"); v != "1" || l.MTU != 1300 || !l.Up {
			t.Errorf("accept_ra %s, mtu %d, up %v", v, l.MTU, l.Up)
		}
		if err := (Bridge{Name: "br0", MTU: 1500}).Verify(t.Context(), w); err != nil {
			t.Error(err)
		}
	})
	t.Run("somebody else's keeps its address, and one that is made anew under its name keeps its own", func(t *testing.T) {
		for _, mac := range []string{"52:54:00:00:00:01", "52:54:00:00:00:02"} {
			contract.Host(t, w, "ip link add br1 index 4242 type bridge")
			contract.Host(t, w, "ip link add low master br1 address %s type veth peer name low1", mac)
			if changed, err := (Bridge{Name: "br1", KeepMAC: true}).Ensure(t.Context(), w); !changed || err != nil {
				t.Errorf("changed %v, %v", changed, err)
			}
			if changed, err := (Bridge{Name: "br1", KeepMAC: true}).Ensure(t.Context(), w); changed || err != nil {
				t.Errorf("again: changed %v, %v", changed, err)
			}
			contract.Host(t, w, "ip link add lower master br1 address 00:00:00:00:00:02 type veth peer name lower1")
			contract.Host(t, w, "ip link del low")
			if l, _ := rtnl.LinkByName(w.Host, "br1"); l.MAC.String() != mac {
				t.Errorf("%s became %v", mac, l.MAC)
			}
			contract.Host(t, w, "ip link del lower")
			contract.Host(t, w, "ip link del br1")
		}
	})
	t.Run("another type", func(t *testing.T) {
		_, err := Bridge{Name: "p1"}.Ensure(t.Context(), w)
		if err == nil || !strings.Contains(err.Error(), "link p1 is a veth, not a bridge") {
			t.Error(err)
		}
	})
}

func TestFullBridge(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Must(t, w, Bridge{Name: "cni0"})
	var batch strings.Builder
	for i := range 511 {
		batch.WriteString("link add a" + strconv.Itoa(i) + " master cni0 type veth peer name b" + strconv.Itoa(i) +
			"\nlink set b" + strconv.Itoa(i) + " master cni0\n")
	}
	batch.WriteString("link add last master cni0 type veth peer name last1\n")
	contract.IPBatch(t, w.Host.Path, batch.String())
	v := testVeth(contract.Owner, "cni0")
	_, err := v.Ensure(t.Context(), w)
	if err == nil || !strings.Contains(err.Error(), "the bridge is full, it takes 1023 ports") {
		t.Error(err)
	}
	if _, err := rtnl.LinkByName(w.Container, "eth0"); !errors.Is(err, rtnl.ErrNoLink) {
		t.Errorf("left behind: %v", err)
	}
	contract.Host(t, w, "ip link add tap type veth peer name tap1")
	if _, err := (Port{Link: "tap", Master: "cni0"}).Ensure(t.Context(), w); err == nil ||
		!strings.Contains(err.Error(), "the bridge is full") {
		t.Error(err)
	}
}

// clause: P23 P22 P12
func TestPort(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Must(t, w, Bridge{Name: "cni0"}, Bridge{Name: "other"})
	contract.Host(t, w, "ip link add tap0 type veth peer name tap1")
	p := Port{Owner: contract.Owner, Link: "tap0", Master: "cni0", Hairpin: true, Isolated: true}
	contract.Test(t, w, p,
		contract.Break("master", contract.On(w, "ip link set tap0 nomaster"), "master is none"),
		contract.Break("hairpin", contract.On(w, "bridge link set dev tap0 hairpin off"), "hairpin is false"),
		contract.Break("isolated", contract.On(w, "bridge link set dev tap0 isolated off"), "isolated is false"),
	)
	t.Run("of another bridge", func(t *testing.T) {
		contract.Host(t, w, "ip link set tap0 master other")
		if _, err := p.Ensure(t.Context(), w); err == nil ||
			!strings.Contains(err.Error(), "tap0 is a port of other already") {
			t.Error(err)
		}
		if err := p.Remove(t.Context(), w); err != nil {
			t.Error(err)
		}
		if l, err := rtnl.LinkByName(w.Host, "tap0"); err != nil || masterName(w, l) != "other" {
			t.Errorf("taken off another bridge: %v, %v", l, err)
		}
	})
	t.Run("moved to another bridge since", func(t *testing.T) {
		contract.Host(t, w, "ip link set tap0 nomaster")
		contract.Must(t, w, p)
		contract.Host(t, w, "ip link set tap0 master other")
		if err := p.Remove(t.Context(), w); err != nil {
			t.Error(err)
		}
		if l, err := rtnl.LinkByName(w.Host, "tap0"); err != nil || masterName(w, l) != "other" {
			t.Errorf("taken off another bridge: %v, %v", l, err)
		}
	})
	t.Run("removed by the owner alone", func(t *testing.T) {
		contract.Host(t, w, "ip link set tap0 nomaster")
		contract.Must(t, w, p)
		bare := Port{Owner: contract.Owner, Master: "cni0"}
		for range 2 {
			if err := bare.Remove(t.Context(), w); err != nil {
				t.Error(err)
			}
		}
		if l, err := rtnl.LinkByName(w.Host, "tap0"); err != nil || l.Master != 0 {
			t.Errorf("still a port: %v, %v", l, err)
		}
	})
	t.Run("a port before, and after", func(t *testing.T) {
		contract.Host(t, w, "ip link set tap0 master cni0")
		contract.Must(t, w, p)
		if err := p.Remove(t.Context(), w); err != nil {
			t.Error(err)
		}
		if l, err := rtnl.LinkByName(w.Host, "tap0"); err != nil || l.Master == 0 {
			t.Errorf("taken off: %v, %v", l, err)
		}
		contract.Host(t, w, "ip link set tap0 nomaster")
	})
	t.Run("swept", func(t *testing.T) {
		contract.Must(t, w, p)
		nobody := func([8]byte) bool { return false }
		if err := sweepLinks(t.Context(), w, "net", nobody, func(*rtnl.Link) bool { return false }); err != nil {
			t.Error(err)
		}
		if l, err := rtnl.LinkByName(w.Host, "tap0"); err != nil || l.Master != 0 {
			t.Errorf("still a port: %v, %v", l, err)
		}
	})
	t.Run("gone", func(t *testing.T) {
		contract.Host(t, w, "ip link del tap0")
		if err := p.Remove(t.Context(), w); err != nil {
			t.Error(err)
		}
		if _, err := p.Ensure(t.Context(), w); !errors.Is(err, rtnl.ErrNoLink) {
			t.Error(err)
		}
	})
}
