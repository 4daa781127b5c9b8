package plugin_test

import (
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// The same container may be attached again while somebody keeps the namespace that it was in before: a macvlan's
// address is another one of the attachment's then, unless somebody asked for one.
func TestMacvlanAgain(t *testing.T) {
	for _, keys := range []string{`"type":"macvlan"`, `"type":"macvtap"`, `"type":"macvlan","ipv6":"off"`} {
		t.Run(keys, func(t *testing.T) {
			nstest.Need(t, "macvlan")
			nstest.Need(t, "macvtap")
			r := newRunner(t, chain{name: "again", plugins: []string{keys + `,"master":"ens7"`}})
			r.host = nstest.NewNS(t)
			nstest.RunIn(t, r.host, "sh", "-ec", "ip link add ens7 up type veth peer name wire; ip link set wire up")
			macs := map[string]bool{}
			for range 3 {
				a := &attachment{id: "c1", netns: nstest.NewNS(t)}
				r.must("ADD", r.add(a))
				r.must("CHECK", r.check(a))
				macs[strings.Fields(nstest.RunIn(t, a.netns, "ip", "-br", "link", "show", "eth0"))[2]] = true
				if err := r.add(&attachment{id: "c1", netns: a.netns}); err == nil ||
					!strings.Contains(err.Error(), "exists already") {
					t.Errorf("attached twice in one namespace: %v", err)
				}
			}
			if len(macs) != 3 {
				t.Errorf("the addresses are %v", macs)
			}
			asked := `,"runtimeConfig":{"mac":"02:00:00:00:00:77"}`
			r.chain.plugins[0] += asked
			r.must("ADD", r.add(&attachment{id: "c2", netns: nstest.NewNS(t)}))
			if err := r.add(&attachment{id: "c3", netns: nstest.NewNS(t)}); err == nil ||
				!strings.Contains(err.Error(), "02:00:00:00:00:77") {
				t.Errorf("with an address that somebody asked for: %v", err)
			}
		})
	}
}
