package spoof_test

import (
	"errors"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource/filter/filtertest"
	"github.com/fairlead-cni/fairlead/resource/filter/spoof"
)

func TestSpoofCheckLaw(t *testing.T) {
	w := contract.NewWorld(t)
	s := spoof.Check{Owner: contract.Owner, Link: "veth1", MAC: "02:00:00:00:00:01"}
	filtertest.Test(t, w, s,
		contract.Break("link", func(t *testing.T) {
			filtertest.NFT(t, w,
				"delete element bridge fairlead spoofcheck { veth1 }")
		},
			"nft element bridge fairlead spoofcheck { veth1 } is missing"),
		contract.Break("address", func(t *testing.T) {
			filtertest.NFT(t, w, "delete element bridge fairlead allowed { veth1 . 02:00:00:00:00:01 }")
		}, "nft element bridge fairlead allowed { veth1 . 02:00:00:00:00:01 } is missing"),
		contract.Break("rule", func(t *testing.T) { filtertest.NFT(t, w, "flush chain bridge fairlead prerouting") },
			"source address of another container"),
		contract.Break("owners", func(t *testing.T) { filtertest.NFT(t, w, "flush set bridge fairlead owners") },
			"is not in owners"),
	)
}

func TestSpoofCheckPackets(t *testing.T) {
	l := filtertest.NewLab(t)
	l.Serve(l.B, "b", "tcp", ":80")
	mac := mac(l, l.A)
	s := spoof.Check{Owner: l.OwnerA, Link: "va", MAC: mac}
	l.Ensure(s, l.W)
	l.Expect(l.A, "tcp", "10.1.2.6:80", "b 10.1.2.5")
	l.In(l.A, "ip link set eth0 address 02:00:00:00:00:99")
	l.Expect(l.A, "tcp", "10.1.2.6:80", "")
	l.In(l.A, "ip link set eth0 address "+mac)
	l.Expect(l.A, "tcp", "10.1.2.6:80", "b 10.1.2.5")
	if err := errors.Join(s.Remove(l.Context(), l.W), l.W.Finish()); err != nil {
		t.Fatal(err)
	}
	l.In(l.A, "ip link set eth0 address 02:00:00:00:00:99")
	l.Expect(l.A, "tcp", "10.1.2.6:80", "b 10.1.2.5")
}

func mac(l *filtertest.Lab, ns *kernel.NS) string {
	k, err := rtnl.LinkByName(ns, "eth0")
	if err != nil {
		l.Fatal(err)
	}
	return k.MAC.String()
}
