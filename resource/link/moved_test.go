package link

import (
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// A link that the container has moved into a namespace of its own goes by DEL and by GC, whatever the container has made
// of its name, mark and address. Links of other attachments on that master stay, also where the container's namespace
// knows theirs, and so do links of other masters.
//
// clause: P11 P12 P22
func TestMovedAway(t *testing.T) {
	for kind, r := range containedLinks(contract.Owner) {
		if kind == "tun" || kind == "dummy" { // which stand on nothing of the host's
			continue
		}
		t.Run(kind, func(t *testing.T) {
			needKind(t, kind)
			w := contract.NewWorld(t)
			masters(t, w)
			contract.Host(t, w, "ip link set ens3 up")
			contract.Host(t, w, "ip link set ens4 up")
			base := func(path string) string { return strings.TrimPrefix(path, "/run/netns/") }
			nested := nstest.NewNS(t)
			inNested := func(script string) string { return nstest.RunIn(t, nested, "sh", "-ec", script) }
			remember := func(w *kernel.World, owner spec.Owner) {
				t.Helper()
				id, err := w.Container.Identity()
				if err == nil {
					err = w.Store.Put(resource.MadeRecord, owner,
						resource.Made{Identity: id, Path: w.Container.Path, Owner: owner})
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			remember(w, contract.Owner)

			// Another attachment's container, which the first has a cable to, and root there has taken the link's mark.
			path := nstest.NewNS(t)
			cont, err := kernel.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer cont.Close()
			sibling := &kernel.World{Host: w.Host, Container: cont, Store: w.Store}
			owner := contract.Owner
			owner.ContainerID = "sibling"
			if kind != "vlan" { // of which a master has one
				contract.Must(t, sibling, containedLinks(owner)[kind])
				remember(sibling, owner)
				if err := rtnl.SetLink(cont, "eth0", rtnl.LinkChange{Alias: "x"}); err != nil {
					t.Fatal(err)
				}
				contract.Container(t, w, "ip link add cable type veth peer name cable netns %s", base(path))
			}
			add := map[string]string{"vlan": "vlan id 7"}[kind]
			if add == "" {
				add = kind
			}
			contract.Host(t, w, "ip link add link ens4 name another netns %s type %s", base(nested), add)

			move := func() {
				t.Helper()
				contract.Must(t, w, r)
				nstest.RunIn(t, w.Container.Path, "sh", "-ec",
					"ip link set eth0 down; ip link set eth0 alias x; ip link set eth0 name mine netns "+base(nested))
				if kind == "macvlan" || kind == "macvtap" {
					inNested("ip link set mine address 02:00:00:00:77:77")
				}
				inNested("ip link set mine up")
				contract.Container(t, w, "ip link add eth0 type bridge") // the container's own
			}
			gone := func(what string) {
				t.Helper()
				if out := inNested("ip -br link"); strings.Contains(out, "mine") || !strings.Contains(out, "another@") {
					t.Errorf("%s: in the nested namespace: %s", what, out)
				}
				if _, err := rtnl.LinkByName(cont, "eth0"); err != nil && kind != "vlan" {
					t.Errorf("%s: another attachment's link: %v", what, err)
				}
				contract.Container(t, w, "ip link del eth0")
			}
			move()
			if err := r.Remove(t.Context(), w); err != nil {
				t.Error(err)
			}
			gone("DEL")
			move()
			gc := &kernel.World{Host: w.Host, Store: w.Store}
			if err := contract.SweepKinds(t.Context(), gc, containedKinds(), contract.Owner.Network,
				func(hash [8]byte) bool { return hash != identity.OwnerHash(contract.Owner) }, nil); err != nil {
				t.Error(err)
			}
			gone("GC")
		})
	}
}
