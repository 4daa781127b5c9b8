package link

import (
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/nstest"
)

func TestIPvlan(t *testing.T) {
	nstest.Need(t, "ipvlan")
	for _, c := range []struct{ mode, flag, otherMode, otherFlag string }{
		{"", "", "l3", "private"}, {"l3", "private", "l3s", "vepa"}, {"l3s", "vepa", "l2", "bridge"},
	} {
		t.Run(c.mode+c.flag, func(t *testing.T) {
			w := contract.NewWorld(t)
			masters(t, w)
			i := IPvlan{Stacked: stacked(contract.Owner, "ipvlan", "ens3"), Mode: c.mode, Flag: c.flag}
			i.MTU = 1400
			breakers := []contract.Breakage{
				contract.Break("mode", contract.In(w, "ip link set eth0 type ipvlan mode "+c.otherMode),
					"mode is "+c.otherMode+", want "+i.mode()),
				contract.Break("flag", contract.In(w, "ip link set eth0 type ipvlan mode "+i.mode()+" "+c.otherFlag),
					"flag is "+c.otherFlag+", want "+i.flag()),
			}
			if c.mode == "" { // what the kinds share
				breakers = append(breakers, sharedBreakers(w, i.Stacked, "ipvlan", "ipvlan mode l2")...)
			}
			contract.Terms{Once: true, Repair: again(w, i)}.Test(t, w, i, breakers...)
		})
	}
}

// TestIPvlanBesideMacvlan: the kernel gives what comes in by a link to one of the two.
func TestIPvlanBesideMacvlan(t *testing.T) {
	nstest.Need(t, "ipvlan")
	nstest.Need(t, "macvlan")
	w := contract.NewWorld(t)
	masters(t, w)
	m := Macvlan{Stacked: stacked(contract.Owner, "macvlan", "ens3")}
	m.Name = "eth1"
	contract.Must(t, w, m)
	i := IPvlan{Stacked: stacked(contract.Owner, "ipvlan", "ens3")}
	if _, err := i.Ensure(t.Context(), w); err == nil || !strings.Contains(err.Error(), `master: "ens3": is in use`) {
		t.Errorf("an ipvlan beside a macvlan: %v", err)
	}
}
