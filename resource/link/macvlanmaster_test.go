package link

import (
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/resource"
)

// A master may be a macvlan or a macvtap itself: the kernel puts what is put on one beside it, on the same link.
//
// clause: P8 P10
func TestMacvlanOnMacvlan(t *testing.T) {
	nstest.Need(t, "macvlan")
	nstest.Need(t, "macvtap")
	for _, below := range []string{"macvlan", "macvtap"} {
		for _, tap := range []bool{false, true} {
			w := contract.NewWorld(t)
			contract.Host(t, w, "ip link add ens3 up type veth peer name wire")
			contract.Host(t, w, "ip link set wire up")
			contract.Host(t, w, "ip link add mv link ens3 up type %s", below)
			m := Macvlan{Stacked: Stacked{Inside: Inside{Owner: contract.Owner, Name: "eth0"}, Master: Master{Where: resource.Host, Link: "mv"}},
				Tap: tap}
			if err := (MasterRoom{Master: m.Master, Network: contract.Owner.Network}).Verify(t.Context(), w); err != nil {
				t.Errorf("on a %s: %v", below, err)
			}
			contract.Must(t, w, m)
			if err := m.Verify(t.Context(), w); err != nil {
				t.Errorf("on a %s: %v", below, err)
			}
		}
	}
	w := contract.NewWorld(t)
	contract.Host(t, w, "ip link add ens3 up type veth peer name wire")
	contract.Host(t, w, "ip link add pt link ens3 up type macvlan mode passthru")
	for link, want := range map[string]string{
		"pt":   `master: "pt": is a passthru, which has to be alone on ens3`,
		"ens3": `master: "ens3": has a passthru, pt, which has to be alone there`,
	} {
		if err := (MasterRoom{Master: Master{Where: resource.Host, Link: link},
			Network: contract.Owner.Network}).Verify(t.Context(), w); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("on %s: %v, want %s", link, err, want)
		}
	}
}
