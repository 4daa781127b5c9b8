// Package plugin is the list of the plugins that this program is.
package plugin

import (
	"github.com/fairlead-cni/fairlead/plugin/alias"
	"github.com/fairlead-cni/fairlead/plugin/bandwidth"
	"github.com/fairlead-cni/fairlead/plugin/bridge"
	"github.com/fairlead-cni/fairlead/plugin/chain"
	"github.com/fairlead-cni/fairlead/plugin/cluster"
	"github.com/fairlead-cni/fairlead/plugin/debug"
	"github.com/fairlead-cni/fairlead/plugin/dhcp"
	"github.com/fairlead-cni/fairlead/plugin/dummy"
	"github.com/fairlead-cni/fairlead/plugin/firewall"
	"github.com/fairlead-cni/fairlead/plugin/hostdevice"
	"github.com/fairlead-cni/fairlead/plugin/hostlocal"
	"github.com/fairlead-cni/fairlead/plugin/ipvlan"
	"github.com/fairlead-cni/fairlead/plugin/loopback"
	"github.com/fairlead-cni/fairlead/plugin/macvlan"
	"github.com/fairlead-cni/fairlead/plugin/macvtap"
	"github.com/fairlead-cni/fairlead/plugin/ovs"
	"github.com/fairlead-cni/fairlead/plugin/portmap"
	"github.com/fairlead-cni/fairlead/plugin/ptp"
	"github.com/fairlead-cni/fairlead/plugin/route"
	"github.com/fairlead-cni/fairlead/plugin/sbr"
	"github.com/fairlead-cni/fairlead/plugin/static"
	"github.com/fairlead-cni/fairlead/plugin/tap"
	"github.com/fairlead-cni/fairlead/plugin/tuning"
	"github.com/fairlead-cni/fairlead/plugin/vlan"
	"github.com/fairlead-cni/fairlead/plugin/vrf"
	"github.com/fairlead-cni/fairlead/sdk"
)

// All are the plugins, by name.
func All() []sdk.Plugin {
	return []sdk.Plugin{
		alias.Plugin,
		bandwidth.Plugin,
		bridge.Plugin,
		chain.Plugin,
		cluster.Plugin,
		debug.Plugin,
		dhcp.Plugin,
		dummy.Plugin,
		firewall.Plugin,
		hostdevice.Plugin,
		hostlocal.Plugin,
		ipvlan.Plugin,
		loopback.Plugin,
		macvlan.Plugin,
		macvtap.Plugin,
		ovs.Plugin,
		portmap.Plugin,
		ptp.Plugin,
		route.Plugin,
		sbr.Plugin,
		static.Plugin,
		tap.Plugin,
		tuning.Plugin,
		vlan.Plugin,
		vrf.Plugin,
	}
}
