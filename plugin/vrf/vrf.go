// Package vrf gives interfaces of a container a routing table of their own, by a VRF of the kernel. Interfaces in the
// same VRF reach each other's networks; interfaces in different VRFs do not, and may have the same addresses. The
// first interface makes the VRF and the last one removes it. If an interface has a default route beside that of
// another network, set priority in its interface plugin's configuration: otherwise the interface plugin skips the
// route before it can get into the VRF.
package vrf

import (
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/routing"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// Plugin is the vrf plugin.
var Plugin = sdk.Chained("vrf", "gives interfaces of a container a routing table of their own", want,
	func(c conf) []plan.Kind {
		return []plan.Kind{routing.VRFKind(c.Name)}
	})

type conf struct {
	// Name of the VRF. Required. The plugin makes the VRF if the container has none of that name.
	Name string `json:"vrfname" want:"ifname" lacks:"the name of a VRF, such as \"blue\""`
	// Number of the VRF's routing table, 1 to 4294967295 without 253 to 255. Default: 0, the table of the VRF if it
	// exists, else a free one.
	Table int `json:"table" want:"0|1..252|256..4294967295" says:"1 to 4294967295, but not 253 (default), 254 (main) and 255 (local), or 0 for a free one"`
}

func want(c conf, r *sdk.Request) (sdk.Answer, error) {
	v := routing.VRF{Owner: r.Owner, Name: c.Name, Table: c.Table}
	if c.Name == r.IfName {
		return sdk.Answer{}, spec.Errorf(spec.CodeConfig,
			"vrfname: %q: is the name of the container's interface itself; want another name", c.Name)
	}
	return sdk.Answer{Plan: plan.Plan{v}}, nil
}
