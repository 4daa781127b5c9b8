package netconf

import (
	"context"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// NetworkOf returns what the plans of an attachment's plugins say about its network. Plugins that are not of this
// project say nothing. For an attachment that the reference made, plugins say what ours of their type would have made.
func NetworkOf(host *kernel.World, c *attach.Cached) resource.Network {
	l := c.AttachedBy(nil)
	if l == nil {
		return resource.NetworkOf(nil)
	}
	inputs, args, _ := (&attach.Runtime{}).Inputs(l, c)
	at := &sdk.Attached{Host: host, Owner: c.Owner(), Netns: c.Netns, Args: args, Result: c.Result}
	var whole plan.Plan
	for _, t := range inputs {
		p := OfType(t.Conf.Type)
		if conf, err := spec.ParseConf(t.Stdin); err == nil && p != nil {
			is, _ := p.Standing(context.Background(), at, conf) // without the links, fewer plans are known
			whole = append(whole, is.Plan...)
		}
	}
	return resource.NetworkOf(whole)
}
