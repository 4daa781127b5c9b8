package link

import (
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/spec"
)

// TestPinnedMAC pins the address of a port, of a port that keeps VLANs apart, and of a link that is no port.
func TestPinnedMAC(t *testing.T) {
	pinned := func(port string) PinnedMAC {
		return PinnedMAC{Owner: contract.Owner, Port: port, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 7}}
	}
	w := contract.NewWorld(t)
	contract.Host(t, w, "ip link add cni0 up type bridge")
	contract.Host(t, w, "ip link add p1 up master cni0 type veth peer name c1")
	contract.Host(t, w, "ip link add p2 up master cni0 type veth peer name c2")

	// An entry that says another port is no reason to leave it so.
	contract.Host(t, w, "bridge fdb add 02:00:00:00:00:07 dev p2 master static")
	terms := contract.Terms{State: func(t testing.TB) string {
		lines := strings.SplitAfter(contract.Host(t, w, "bridge fdb show"), "\n")
		return strings.Join(slices.DeleteFunc(lines, func(line string) bool {
			return !strings.HasPrefix(line, "02:00:00:00:00:07 ")
		}), "")
	}}
	terms.Test(t, w, pinned("p1"), contract.Break("unpinned",
		contract.On(w, "bridge fdb del 02:00:00:00:00:07 dev p1 master"), "is missing"))

	same := pinned("p2")
	same.Owner = spec.Owner{Network: "net", ContainerID: "other", IfName: "eth0"}
	for _, r := range []PinnedMAC{same, pinned("c1")} {
		if changed, err := r.Ensure(t.Context(), w); changed || err != nil {
			t.Errorf("%v: changed %v, error %v", r, changed, err)
		}
	}
	contract.Verify(t, w, same)
	later := pinned("p1") // as a later plugin of the list sets it
	later.MAC = net.HardwareAddr{2, 0, 0, 0, 0, 9}
	contract.Verify(t, w, later)
	if err := pinned("c1").Verify(t.Context(), w); err == nil {
		t.Error("nothing is said of a port that is on no bridge")
	}

	t.Run("vlan", func(t *testing.T) {
		contract.NeedBridgeVLANs(t)
		contract.Host(t, w, "ip link set cni0 type bridge vlan_filtering 1")
		contract.Host(t, w, "bridge vlan add dev p2 vid 100 pvid untagged")
		r := pinned("p2")
		r.MAC = net.HardwareAddr{2, 0, 0, 0, 0, 8}
		contract.Ensure(t, w, r)
		got := contract.Host(t, w, "bridge fdb show dev p2")
		if !strings.Contains(got, "02:00:00:00:00:08 vlan 100 sticky") {
			t.Errorf("the address is not pinned in the VLAN:\n%s", got)
		}
	})
}
