package netconf

import (
	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// NetworkOf returns what the plans of an attachment's plugins say about its network.
func NetworkOf(host *kernel.World, c *attach.Cached) sdk.Network {
	l := c.AttachedBy(nil)
	if l == nil {
		return sdk.NetworkOf(plugin.All(), host, nil)
	}
	told, args, _ := (&attach.Runtime{}).Told(l, c)
	var parts []sdk.Attached
	for _, t := range told {
		if conf, err := spec.ParseConf(t.Stdin); err == nil {
			parts = append(parts, sdk.Attached{Owner: c.Owner(), Netns: c.Netns, Args: args, Conf: conf})
		}
	}
	return sdk.NetworkOf(plugin.All(), host, parts)
}
