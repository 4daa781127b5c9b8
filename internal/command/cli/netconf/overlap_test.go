package netconf

import (
	"fmt"
	"testing"

	"github.com/fairlead-cni/fairlead/spec"
)

// TestWireOf asks the plans of networks, as the plugins have them: a bridge is the containers' gateway by isGateway or
// isDefaultGateway, and not by ipMasq.
func TestWireOf(t *testing.T) {
	const ipam = `"ipam":{"type":"host-local","subnet":"10.9.0.0/24"}`
	for _, c := range []struct{ plugins, want string }{
		{`{"type":"bridge","isGateway":true,` + ipam + `}`, `bridge cni0 routed`},
		{`{"type":"bridge","bridge":"lan0","isDefaultGateway":true,` + ipam + `}`, `bridge lan0 routed`},
		{`{"type":"bridge","bridge":"lan0","ipMasq":true,` + ipam + `}`, `bridge lan0`},
		{`{"type":"bridge","bridge":"lan0","vlan":1,` + ipam + `}`, `bridge lan0`},
		{`{"type":"bridge","bridge":"lan0","vlan":7,"isGateway":true,` + ipam + `}`, `bridge lan0 VLAN 7 routed`},
		{`{"type":"chain","plugins":[{"type":"bridge","bridge":"lan0","isGateway":true,` + ipam + `},{"type":"portmap"}]}`,
			`bridge lan0 routed`},
		{`{"type":"ptp",` + ipam + `}`, `network n routed`},
		{`{"type":"macvlan","master":"ens3",` + ipam + `}`, `master ens3`},
		{`{"type":"vlan","master":"ens3","vlanId":9,` + ipam + `}`, `master ens3 VLAN 9`},
		{`{"type":"ovs","bridge":"br-int",` + ipam + `}`, `ovs bridge br-int`},
		{`{"type":"bridge","bridge":"lan0","ipam":{"type":"dhcp"}}`, ``},
		{`{"type":"bridge","bridge":"lan0","ipam":{"type":"whereabouts","range":"10.9.0.0/24"}}`, ``},
		{`{"type":"cilium-cni",` + ipam + `}`, ``},
	} {
		l, err := spec.ParseList([]byte(`{"cniVersion":"1.0.0","name":"n","plugins":[` + c.plugins + `]}`))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if w, ok := WireOf(l); ok {
			got = w.String()
			if w.Routed {
				got += " routed"
			}
			if fmt.Sprint(w.ranges[0].Subnet) != "10.9.0.0/24" {
				t.Errorf("%s: ranges %v", c.plugins, w.ranges)
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.plugins, got, c.want)
		}
	}
}
