package rtnl

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/kernel/kerneltest"
	"github.com/fairlead-cni/fairlead/internal/nstest"
)

func TestLinkIsBornWhole(t *testing.T) {
	host, cont := kerneltest.Open(t), kerneltest.Open(t)
	nstest.RunIn(t, host.Path, "ip", "link", "add", "eth0", "mtu", "1400", "up", "type", "veth", "peer", "name", "lan")
	parent, err := LinkByName(host, "eth0")
	if err != nil {
		t.Fatal(err)
	}
	const vepa = 2 // MACVLAN_MODE_VEPA
	mac, _ := net.ParseMAC("02:11:22:33:44:55")
	l := NewLink{Name: "net0", Kind: "macvlan", NS: cont, Index: 77, Parent: parent.Index, MAC: mac, MTU: 1300, Group: 5,
		Alias: "whose", Up: true,
		Data: MacvlanData(vepa, 0)}
	if err := AddLink(host, l); err != nil {
		t.Fatal(err)
	}
	got, err := LinkByName(cont, "net0")
	if err != nil {
		t.Fatal(err)
	}
	if got.Index != 77 || got.Kind != "macvlan" || got.MAC.String() != mac.String() || got.MTU != 1300 || got.Group != 5 ||
		got.Alias != "whose" || !got.Up ||
		got.Data.Mode != vepa || got.Peer != parent.Index || !got.PeerAway {
		t.Errorf("%+v", got)
	}

	// Another of the name: the first stays as it was.
	l.Alias, l.MTU, l.Index = "another", 1200, 0
	if err := AddLink(host, l); !errors.Is(err, ErrLinkExists) {
		t.Error(err)
	}
	if now, err := LinkByName(cont, "net0"); err != nil || now.Alias != "whose" || now.MTU != 1300 {
		t.Errorf("%+v, %v", now, err)
	}
	// What cannot get its alias is not left behind.
	l.Name, l.MAC, l.Alias = "net1", nil, strings.Repeat("x", 300)
	if err := AddLink(host, l); err == nil {
		t.Error("an alias of 300 bytes was taken")
	}
	if _, err := LinkByName(cont, "net1"); !errors.Is(err, ErrNoLink) {
		t.Errorf("half a link is left: %v", err)
	}
	// Without a parent and in the namespace itself.
	if err := AddLink(cont, NewLink{Name: "br0", Kind: "bridge"}); err != nil {
		t.Error(err)
	}
}
