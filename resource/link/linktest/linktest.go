package linktest

import (
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/spec"
)

func Stacked(o spec.Owner, kind, master string) link.Stacked {
	return link.Stacked{Inside: link.Inside{Owner: o, Name: o.IfName}, Chosen: master == "",
		Master: link.Master{Where: resource.Host, Link: master, Kind: kind, Taken: true, Up: true}}
}

func Veth(o spec.Owner, master string) link.Veth {
	return link.Veth{Owner: o, Name: o.IfName, Host: identity.LinkName("veth", o), Master: master}
}
