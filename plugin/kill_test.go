package plugin_test

import (
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/sdk/sdktest"
)

// TestKill kills ADD of the last plugin of the chains with kill at each call that can change something, and then DEL of the chain
// has to leave nothing.
//
// clause: P11 P12
func TestKill(t *testing.T) {
	for _, c := range chains {
		if !c.kill {
			continue
		}
		nstest.Apart(t, c.name, func(t *testing.T) {
			r := c.runner(t)
			withoutBridges(t)
			warm := &attachment{id: "k", netns: nstest.NewNS(t)}
			r.must("add", r.add(warm))
			r.must("del", r.del(warm))
			sdktest.Killed(t, func(netns string, under ...string) error {
				return r.add(&attachment{id: "k", netns: netns}, under...)
			}, func(netns string) error { return r.del(&attachment{id: "k", netns: netns}) })
		})
	}
}
