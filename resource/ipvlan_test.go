package resource

import (
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

func TestIPvlan(t *testing.T) {
	nstest.Need(t, "ipvlan")
	for _, mode := range []string{"", "l3", "l3s"} {
		for _, f := range []string{"", "private", "vepa"} {
			t.Run(mode+f, func(t *testing.T) {
				w := newWorld(t)
				masters(t, w)
				i := IPvlan{Stacked: stacked(owner, "ipvlan", "ens3"), Mode: mode, Flag: f}
				i.MTU = 1400
				again := func(t *testing.T) {
					if err := i.Remove(t.Context(), w); err != nil {
						t.Fatal(err)
					}
					host(t, w, "ip link set ens3 up mtu 1500")
					must(t, w, i)
				}
				other, flag := "l3", "private"
				if mode == "l3" {
					other = "l2"
				}
				if f == "private" {
					flag = "vepa"
				}
				lawBook{once: true, repair: again}.hold(t, w, i,
					breaker{"mtu", in(w, "ip link set eth0 mtu 1300"), "mtu is 1300, want 1400"},
					breaker{"down", in(w, "ip link set eth0 down"), "state is down, want up"},
					breaker{"gone", in(w, "ip link del eth0"), "link eth0: link does not exist"},
					breaker{"master down", on(w, "ip link set ens3 down"), "master ens3 is down"},
					breaker{"mode", in(w, "ip link set eth0 type ipvlan mode "+other), "mode is " + other + ", want " + i.mode()},
					breaker{"flag", in(w, "ip link set eth0 type ipvlan mode "+i.mode()+" "+flag), "flag is " + flag + ", want " + i.flag()},
					breaker{"another master", func(t *testing.T) {
						cont(t, w, "ip link del eth0")
						host(t, w, "ip link add link ens4 name eth0 mtu 1400 netns %s type ipvlan mode %s %s", strings.TrimPrefix(w.Container.Path, "/run/netns/"), i.mode(), i.flag())
						cont(t, w, "ip link set eth0 up")
					}, "master is ens4, want ens3"},
				)
			})
		}
	}
}

// TestIPvlanBesideMacvlan: the kernel gives what comes in by a link to one of the two.
func TestIPvlanBesideMacvlan(t *testing.T) {
	nstest.Need(t, "ipvlan")
	nstest.Need(t, "macvlan")
	w := newWorld(t)
	masters(t, w)
	m := Macvlan{Stacked: stacked(owner, "macvlan", "ens3")}
	m.Name = "eth1"
	must(t, w, m)
	i := IPvlan{Stacked: stacked(owner, "ipvlan", "ens3")}
	if _, err := i.Ensure(t.Context(), w); err == nil || !strings.Contains(err.Error(), "ens3 is in use") {
		t.Errorf("an ipvlan beside a macvlan: %v", err)
	}
}
