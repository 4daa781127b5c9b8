// Package bandwidth limits how fast a container receives and sends.
//
// Ingress is to the container, egress from it. The limits are on the host-side interface of the container's veth pair,
// or on a tap on the host, where the container cannot change them: a token bucket filter (tbf) for what the interface
// sends, and another one on an ifb that gets all packets that arrive on the interface. If the host has no such
// interface, as with macvlan, both are on the container interface, also if the result lists the host-side interface of
// another interface of the container. A container with CAP_NET_ADMIN can remove them
// there; CHECK reports it, and the next ADD restores them.
//
// The plugin asks the kernel for the host-side interface of the container's veth pair. It uses the names in the
// previous result only if the other end is not on the host. DEL needs neither a result nor the container's namespace.
//
// A burst passes at once, without a limit. The default is what the rate allows in 50 ms: long enough for late timers
// of a busy host, short enough to limit. The value 4294967295, which containerd and CRI-O write for "not set", means
// the default. A burst smaller than a packet is raised to a packet. Packets above the rate wait for at most 25 ms plus
// the time of a default burst, and are then dropped.
//
// shapedSubnets and unshapedSubnets are addresses of the other side. Packets that belong to no subnet, such as ARP,
// are not limited with shapedSubnets, and are limited with unshapedSubnets.
package bandwidth

import (
	"strings"

	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/shape"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// Plugin is the bandwidth plugin.
var Plugin = sdk.Chained("bandwidth", "limits how fast a container receives and sends", want, func(conf) []plan.Kind {
	return []plan.Kind{shape.IFBKind(), shape.LimitKind()}
})

type conf struct {
	limits

	RuntimeConfig struct {
		// The same keys, set by the runtime (clause K3). Ignored if the configuration itself sets a rate or a burst.
		Bandwidth limits `json:"bandwidth"`
	} `json:"runtimeConfig"`
}

func want(c conf, r *sdk.Request) (sdk.Answer, error) {
	ingress, egress, err := c.parse()
	if err != nil {
		return sdk.Answer{}, err
	}
	where, link, err := shaped(r)
	if err != nil {
		return sdk.Answer{}, err
	}
	sent, received := ingress, egress // the host's end sends what the container receives
	if where == resource.Container {
		sent, received = egress, ingress
	}
	var p plan.Plan
	if sent.Rate > 0 {
		p = append(p, shape.Qdisc{Owner: r.Owner, Where: where, Link: link, Limit: sent})
	} else {
		p = append(p, shape.NoLimit{Owner: r.Owner, Where: where, Link: link})
	}
	if received.Rate == 0 {
		return sdk.Answer{Plan: append(p, shape.NoLimit{Owner: r.Owner, Where: where, Link: link, Incoming: true})}, nil
	}
	return sdk.Answer{Plan: append(p,
		shape.IFB{Owner: r.Owner, Where: where, For: link},
		shape.Qdisc{Owner: r.Owner, Where: where, Link: r.LinkName("ifb"), Limit: received},
		shape.Redirect{Owner: r.Owner, Where: where, Link: link})}, nil
}

// shaped is the link that limits are put on: the other end of the container's veth; where that is not on the host, the
// veth or tap that the result lists there; where it lists none, as after macvlan, the container's own interface.
func shaped(r *sdk.Request) (where resource.Where, link string, err error) {
	if r.Peer != nil {
		return resource.Host, r.Peer.Name, nil
	}
	var found []string
	for _, l := range r.HostLinks {
		switch {
		case l.OtherNetns:
			err = spec.Errorf(spec.CodeConfig,
				"prevResult: %s: its other end is not in the container's network namespace, so the limit would apply "+
					"to another container", l.Name)
		case l.Name == r.LinkName("veth"), l.Was == r.LinkName("veth"):
			return resource.Host, l.Name, nil
		case r.IsVLANGateway(l): // all in the VLAN share it
		case l.Beside:
		case l.Kind == "veth", l.Kind == "tun":
			found = append(found, l.Name)
		}
	}
	switch {
	case len(found) == 1:
		return resource.Host, found[0], nil
	case len(found) > 1:
		err = spec.Errorf(spec.CodeConfig,
			"prevResult: %s: several interfaces of the host may lead to the container; the plugin can limit only one",
			strings.Join(found,
				", "))
	case err == nil && len(r.Missing) > 0:
		err = spec.Errorf(spec.CodeConfig,
			"prevResult: %s: does not exist on the host, and %s is not a veth whose other end is there: want the "+
				"host-side interface of the container, or none", strings.Join(r.Missing,
				", "), r.IfName)
	}
	return resource.Container, r.IfName, err
}
