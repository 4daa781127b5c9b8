package repair

import (
	"fmt"
	"slices"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// linksOff are the links of the host without which an attachment of the reference plugins carries nothing: one that its
// ADD answered with and that is missing or down, and a host-side interface that has left its bridge.
func linksOff(host *kernel.NS, result *spec.Result) (off []string) {
	if result == nil {
		return nil
	}
	var bridge *kernel.Link
	for _, i := range result.Interfaces {
		if i.Sandbox != "" {
			continue
		}
		l, err := host.Link(i.Name)
		switch {
		case err != nil:
			off = append(off, err.Error())
			continue
		case !l.Up:
			off = append(off, fmt.Sprintf("link %s is down", l.Name))
		case l.Kind == "veth" && bridge != nil && l.Master == 0:
			off = append(off, fmt.Sprintf("link %s is not a port of bridge %s", l.Name, bridge.Name))
		}
		if l.Kind == "bridge" {
			bridge = l
		}
	}
	return off
}

// tagged reports whether a link on the host bears the mark of an attachment by ours.
func tagged(host *kernel.World, c *attach.Cached) bool {
	return c.Result != nil && slices.ContainsFunc(c.Result.Interfaces, func(f spec.Interface) bool {
		return f.Sandbox == "" && resource.Tagged(host, f.Name, c.Owner())
	})
}
