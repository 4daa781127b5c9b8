package cli

import (
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/advice"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/spec"
)

// Who has what was asked for is told how that is given back.
func TestAdvice(t *testing.T) {
	attached := []attach.Cached{
		{Network: "lan", ContainerID: attached.ContainerID("/proc/self/ns/net"), IfName: "eth0", Netns: "/proc/self/ns/net"},
		{Network: "lan", ContainerID: "web", IfName: "net1", Netns: "/proc/self/ns/net"},
		{Network: "lan", ContainerID: "run-1", IfName: "eth0", Netns: "/proc/self/ns/net"},
		{Network: "lan", ContainerID: "old", IfName: "eth0", Netns: "/run/netns/none"},
	}
	for holder, want := range map[string]string{
		"lan/" + attached[0].ContainerID + "/eth0": "`fairlead del lan /proc/self/ns/net` detaches the holder.",
		"lan/web/net1":   "It is released when the runtime that made web removes it. If the runtime no longer knows it, `fairlead del lan /proc/self/ns/net --container-id web -i net1` detaches it.",
		"/web/":          "It is released when the runtime that made web removes it",
		"lan/run-1/eth0": "run-1 is a `fairlead run`, which releases it at its end.",
		"lan/old/eth0":   "The network namespace of lan/old/eth0 is gone: `fairlead gc lan --gone` removes what it left.",
		"other/c1/eth1":  "`fairlead ls` knows nothing of other/c1/eth1. If its container is gone, `fairlead del other gone --container-id c1 -i eth1` gives back what it holds.",
		"other/c1/":      "",
		"":               "",
	} {
		got := advice.GivesBack(&spec.Error{Holder: holder}, attached)
		if !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%s: %q, want %q", holder, got, want)
		}
	}
}
