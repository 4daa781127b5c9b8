package shape

import (
	"context"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/link/linktest"
	"github.com/fairlead-cni/fairlead/spec"
)

// Whoever looks at a link on the host sees whose it is, however long the names are.
func TestWhoseItIs(t *testing.T) {
	w := contract.NewWorld(t)
	long := spec.Owner{Network: strings.Repeat("n", 100), ContainerID: strings.Repeat("c", 64), IfName: "eth0"}
	for _, o := range []spec.Owner{contract.Owner, long} {
		v := linktest.Veth(o, "")
		contract.Must(t, w, v, IFB{Owner: o, Where: resource.Host, For: v.Host})
		for name, alt := range map[string]string{v.Host: resource.AltName(o), ifbName(o): resource.AltName(o) + ":ifb"} {
			out := contract.Host(t, w, "ip link show %s", name)
			if !strings.Contains(out, "alias "+identity.Tag(o)) || !strings.Contains(out, "altname "+alt+"\n") {
				t.Errorf("%s", out)
			}
			if l, err := rtnl.LinkByName(w.Host, name); err != nil || len(alt) > 127 || len(l.Alias) > 255 {
				t.Errorf("%d bytes of altname, %+v, %v", len(alt), l, err)
			}
		}
		if err := v.Remove(context.Background(), w); err != nil {
			t.Error(err)
		}
	}
	if out := contract.Host(t, w, "ip link"); strings.Count(out, "net:c1:eth0:ifb") != 1 {
		t.Errorf("the ifb: %s", out)
	}
}
