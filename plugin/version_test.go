package plugin_test

import (
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/spec"
)

// TestNoGCBefore110 asks every plugin for GC and STATUS in each version that does not have them. GC removes nothing
// then, although its list is empty.
//
// clause: V9
func TestNoGCBefore110(t *testing.T) {
	r := newRunner(t, chain{name: "old", plugins: []string{`"type":"bridge","isGateway":true,` + hostLocal4}})
	a := &attachment{id: "a", netns: nstest.NewNS(t)}
	r.must("add", r.add(a))
	for _, p := range plugin.All() {
		for _, v := range []string{"", "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0"} {
			old := &runner{t: t, dir: r.dir, ifName: r.ifName, chain: chain{name: "old", plugins: []string{
				`"type":"` + p.Name + `","isGateway":true,` + hostLocal4 + `,"cniVersion":"` + v + `"`}}}
			for verb, err := range map[string]error{"GC": old.gc(), "STATUS": old.status()} {
				wantCode(t, verb+" of "+p.Name+" in "+v, err, spec.CodeVersion, "1.1.0")
			}
		}
	}
	r.must("check", r.check(a))
	r.must("del", r.del(a))
}
