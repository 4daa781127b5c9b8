package keys

import (
	"testing"

	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// A link that has to get something before it is up is made down. It is set up after that, or else with its addresses.
func TestLinkOnMaster(t *testing.T) {
	for name, tc := range map[string]struct {
		c    OnMaster
		l3   bool
		down bool
		want string
	}{
		"as it is":             {OnMaster{Master: "ens3"}, false, false, ""},
		"without IPv6":         {OnMaster{Master: "ens3", MasterKeys: MasterKeys{IPv6: "off"}}, false, true, "ipv6 off cont/eth0\nlink cont/eth0 up\n"},
		"before its addresses": {OnMaster{Master: "ens3", Announces: true}, true, true, ""},
		"without addresses":    {OnMaster{Master: "ens3", Announces: true}, false, false, ""},
	} {
		r := &sdk.Request{Owner: spec.Owner{Network: "net", ContainerID: "c", IfName: "eth0"}, L3: tc.l3}
		_, stacked, after, err := tc.c.Plan(r)
		if err != nil || stacked.Down != tc.down || after.String() != tc.want {
			t.Errorf("%s: down %v, then\n%s%v; want %v and\n%s", name, stacked.Down, after, err, tc.down, tc.want)
		}
	}
}
