package addr

import (
	"errors"
	"net/netip"
	"strconv"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/engine"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/resource/link/linktest"
	"github.com/fairlead-cni/fairlead/resource/sysctl"
	"github.com/fairlead-cni/fairlead/spec"
)

// clause: P20
func TestTogether(t *testing.T) {
	w := contract.NewWorld(t)
	const n = 12
	errs := make(chan error)
	for i := range n {
		c := *w
		c.Container = contract.OpenNS(t)
		var err error
		if c.Host, err = kernel.Open(w.Host.Path); err != nil { // each call is a process of its own
			t.Fatal(err)
		}
		t.Cleanup(c.Host.Close)
		o := spec.Owner{Network: "net", ContainerID: "c" + strconv.Itoa(i), IfName: "eth0"}
		p := plan.Plan{link.Bridge{Name: "cni0"}, Gateway{Link: "cni0", Prefix: netip.MustParsePrefix("fd00::1/64")},
			sysctl.Forwarding{V6: true}, linktest.Veth(o, "cni0")}
		go func() {
			tx := engine.Begin(&c)
			errs <- errors.Join(tx.Apply(t.Context(), p), engine.Verify(t.Context(), &c, p))
		}()
	}
	for range n {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}
