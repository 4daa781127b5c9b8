package repair

import (
	"fmt"
	"slices"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// Links compares an attachment with the links in the result of its ADD, whichever plugin made it. It returns those of
// the host, and why the attachment carries no traffic: a link is missing or down, or a host-side interface has left its
// bridge.
func Links(w *kernel.World, c *attach.Cached) (host []*rtnl.Link, off spec.Differences) {
	if c.Result == nil {
		return nil, nil
	}
	look := func(ns *kernel.NS, name string) *rtnl.Link {
		l, err := rtnl.LinkByName(ns, name)
		switch {
		case err != nil:
			off = append(off, spec.Difference{Field: "link", Want: name, Got: spec.Absent}.Saying(err))
			return nil
		case !l.Up:
			off = append(off, spec.Difference{Link: l.Name, Field: "state", Want: "up", Got: "down",
				Text: fmt.Sprintf("link %s is down", l.Name)})
		}
		return l
	}
	var bridge *rtnl.Link
	for _, i := range c.Result.Interfaces {
		if i.Sandbox != "" {
			continue
		}
		l := look(w.Host, i.Name)
		if l == nil {
			continue
		}
		if host = append(host, l); l.Up && l.Kind == "veth" && bridge != nil && l.Master == 0 {
			off = append(off, spec.Difference{Link: l.Name, Field: "master", Want: bridge.Name,
				Text: fmt.Sprintf("link %s is not a port of bridge %s", l.Name, bridge.Name)})
		}
		if l.Kind == "bridge" {
			bridge = l
		}
	}
	if w.Container != nil {
		look(w.Container, c.IfName)
	}
	return host, off
}

// tagged reports whether a link on the host bears Fairlead's mark of an attachment.
func tagged(host *kernel.World, c *attach.Cached) bool {
	return c.Result != nil && slices.ContainsFunc(c.Result.Interfaces, func(f spec.Interface) bool {
		return f.Sandbox == "" && resource.Tagged(host, f.Name, c.Owner())
	})
}
