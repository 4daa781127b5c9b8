package support

import (
	"slices"
	"testing"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/calls"
	"github.com/fairlead-cni/fairlead/spec"
)

// TestHiddenNames holds that --mask knows names of what is there and of what only the log still tells of, in each form.
func TestHiddenNames(t *testing.T) {
	list := []attach.Cached{{Netns: "/srv/customer/zone-<a&b>", Result: &spec.Result{
		Interfaces: []spec.Interface{{Name: "eth0", MAC: "02:AA:bb:cc:dd:ee"}}}}}
	log := []calls.Line{
		{Container: "departed", Pod: "gonespace/gonepod"},
		{Error: `open /run/netns/vanished: no such file; CNI_ARGS is "IgnoreUnknown=1;K8S_POD_NAME=lastpod"`},
		{Steps: []calls.Step{{Step: "open /var/run/docker/netns/stepns"}}},
	}
	names := hiddenNames(list, log)
	for _, want := range []string{"zone-<a&b>", `zone-\u003ca\u0026b\u003e`, "02aabbccddee", "departed", "gonespace", "gonepod",
		"vanished", "lastpod", "stepns"} {
		if !slices.Contains(names, want) {
			t.Errorf("%s is not hidden: %q", want, names)
		}
	}
}
