// Package vlan gives a container an interface in one VLAN of an interface of the host. The interface sends and
// receives the packets of that VLAN without their tags. An interface of the host has each VLAN once, so one container
// at a time can have it.
package vlan

import (
	"github.com/fairlead-cni/fairlead/internal/keys"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/sdk"
)

// Plugin is the vlan plugin.
var Plugin = sdk.Interface("vlan", "gives a container an interface in one VLAN of a host interface", want,
	func(conf) []plan.Kind {
		return []plan.Kind{link.ContainerLink("vlan")}
	})

type conf struct {
	// Interface that the VLAN is on, such as ens3. Required. It can be a VLAN itself; packets then have two tags.
	Master string `json:"master" want:"ifname" lacks:"the name of the link whose VLAN it is to be, such as \"ens3\""`
	// Number of the VLAN, 1 to 4094. Required.
	VLAN *int `json:"vlanId" want:"1..4094" lacks:"a number from 1 to 4094"`
	// Protocol of the tag: 802.1q, or 802.1ad for a provider's tag around VLANs of 802.1q (QinQ). Default: 802.1q.
	Protocol string `json:"protocol" want:"802.1q|802.1ad"`
	keys.MasterKeys
}

func want(c conf, r *sdk.Request) (sdk.Answer, error) {
	on := keys.OnMaster{MasterKeys: c.MasterKeys, Kind: "vlan", Master: c.Master, Ether: true, Up: true}
	before, stacked, after, err := on.Plan(r)
	if err != nil {
		return sdk.Answer{}, err
	}
	return sdk.Answer{Plan: append(append(before, link.VLAN{Stacked: stacked, ID: *c.VLAN, Protocol: c.Protocol}),
		after...)}, nil
}
