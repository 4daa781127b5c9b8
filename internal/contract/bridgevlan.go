package contract

import (
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
)

func NeedBridgeVLANs(t *testing.T) {
	t.Helper()
	nstest.Need(t, "bridge", "vlan_filtering", "1")
}

// BridgeVLANState is State and the VLANs of every port.
func BridgeVLANState(w *kernel.World) func(testing.TB) string {
	return func(t testing.TB) string {
		state := State(t, w) + Host(t, w, "bridge vlan show")
		for line := range strings.Lines(Host(t, w, "ip -o -d link show type bridge")) {
			_, after, _ := strings.Cut(line, "vlan_filtering ")
			state += strings.Fields(line)[1] + " vlan_filtering " + after[:1] + "\n"
		}
		return state
	}
}
