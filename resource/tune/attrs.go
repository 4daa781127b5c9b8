package tune

import (
	"net"
	"strconv"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

// attrs are attributes of a link: ip(8)'s name and value.
type attrs map[string]string

// attrNames are the attributes in the order in which the kernel takes them out of one message.
func attrNames() []string { return []string{"address", "mtu", "promisc", "allmulticast", "txqueuelen"} }

// keyOf is what the configuration calls an attribute.
func keyOf(attr string) string {
	switch attr {
	case "address":
		return "mac"
	case "allmulticast":
		return "allmulti"
	case "txqueuelen":
		return "txQLen"
	}
	return attr
}

func attrsOf(l *rtnl.Link) attrs {
	if l == nil {
		return attrs{}
	}
	return attrs{
		"address": l.MAC.String(), "mtu": strconv.Itoa(l.MTU), "promisc": onOff(l.Promisc),
		"allmulticast": onOff(l.AllMulti), "txqueuelen": strconv.Itoa(l.TxQLen),
	}
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// unlike is the part of a that differs from have.
func (a attrs) unlike(have attrs) attrs {
	d := attrs{}
	for name, v := range a {
		if v != have[name] {
			d[name] = v
		}
	}
	return d
}

// set gives the link the attributes. One that is refused leaves those before it changed.
func (a attrs) set(ns *kernel.NS, link string) error {
	if len(a) == 0 {
		return nil
	}
	var c rtnl.LinkChange
	if v, ok := a["address"]; ok {
		mac, err := net.ParseMAC(v)
		if err != nil {
			return err
		}
		c.MAC = mac
	}
	c.MTU, _ = strconv.Atoi(a["mtu"])
	if v, ok := a["promisc"]; ok {
		c.Promisc = new(v == "on")
	}
	if v, ok := a["allmulticast"]; ok {
		c.AllMulti = new(v == "on")
	}
	if v, ok := a["txqueuelen"]; ok {
		n, err := strconv.Atoi(v)
		if err != nil {
			return err
		}
		c.TxQLen = &n
	}
	return rtnl.SetLink(ns, link, c)
}
