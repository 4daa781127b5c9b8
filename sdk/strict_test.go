package sdk_test

import (
	"os"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

// TestStrictEndsNothing: unknown keys are errors of ADD, CHECK and STATUS where the configuration asks for it. DEL and GC
// remove what there is all the same, also for a plugin and an IPAM plugin that know fewer keys than those that attached.
//
// clause: P12
func TestStrictEndsNothing(t *testing.T) {
	ns := "CNI_NETNS=" + nstest.NewNS(t)
	for where, keys := range map[string]string{
		"plugin":      `,"strict":true,"lable":1,"ipam":{"type":"toyipam"}`,
		"ipam":        `,"strict":true,"ipam":{"type":"toyipam","rnage":1}`,
		"ipam itself": `,"strict":true,"ipam":{"type":"toyipam","rnage":1}`,
	} {
		plugin := "toy"
		if where == "ipam itself" {
			plugin = "toyipam"
		}
		for _, verb := range []string{"ADD", "CHECK", "STATUS"} {
			more := keys
			if verb == "CHECK" {
				more += prev
			}
			a := ask(t, plugin, conf("1.1.0", more), env(verb, ns)...)
			if a.status == 0 || a.doc["code"] != float64(spec.CodeUnsupported) {
				t.Errorf("%s: %s: %d %v", where, verb, a.status, a.doc)
			}
		}
		for _, verb := range []string{"DEL", "GC"} {
			if err := os.WriteFile(lease, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			a := ask(t, plugin, conf("1.1.0", keys+`,"cni.dev/valid-attachments":[]`), env(verb, ns)...)
			if a.status != 0 {
				t.Errorf("%s: %s: %d %v", where, verb, a.status, a.doc)
			}
			if _, err := os.Stat(lease); err == nil {
				t.Errorf("%s: %s leaves the lease", where, verb)
			}
		}
	}
}
