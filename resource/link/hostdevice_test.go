package link

import (
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
)

// TestSweepSparesDevices: whoever is root in a container chooses the group and the alias of the device that it has. No
// sweep takes it for a link of ours.
//
// clause: P22
func TestSweepSparesDevices(t *testing.T) {
	for what, alias := range map[string]string{
		"without a tag":           "theirs",
		"with a tag":              identity.Tag(spec.Owner{Network: "lan", ContainerID: "zz", IfName: "eth0"}),
		"with a tag that is kept": identity.Tag(contract.Owner),
	} {
		for _, group := range []uint32{identity.LinkGroup("lan"), deletionGroup("lan")} {
			w := contract.NewWorld(t)
			contract.Host(t, w, "ip tuntap add tap4 mode tap")
			contract.Host(t, w, "ip link add ens4 type veth peer name wire")
			goes := spec.Owner{Network: "lan", ContainerID: "c7", IfName: "eth1"}
			contract.Must(t, w, Bridge{Name: "cni0"})
			v := testVeth(goes, "cni0")
			v.Name = goes.IfName
			contract.Must(t, w, v)
			nstest.RunIn(t, w.Host.Path, "ip", "link", "set", "tap4", "alias", alias)
			contract.Host(t, w, "ip link set tap4 group %d", group)
			if alias == "theirs" {
				contract.Host(t, w, "ip link set ens4 group %d", group)
			}
			keep := func(o [8]byte) bool { return o == identity.OwnerHash(contract.Owner) }
			if err := sweepLinks(t.Context(), w, "lan", keep, func(*rtnl.Link) bool { return false }); err != nil {
				t.Error(what, err)
			}
			for _, name := range []string{"tap4", "ens4"} {
				if l, err := rtnl.LinkByName(w.Host, name); err != nil || l.Group == deletionGroup("lan") {
					t.Errorf("%s, group %#x: %+v, %v", what, group, l, err)
				}
			}
			if _, err := rtnl.LinkByName(w.Host, identity.LinkName("veth", goes)); err == nil {
				t.Errorf("%s: what was to go stays", what)
			}
		}
	}
}
