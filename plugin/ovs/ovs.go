// Package ovs connects containers to a bridge of Open vSwitch, on Open vSwitch 2.8 and newer. It uses the Unix socket
// of ovsdb-server, and ADD returns when ovs-vswitchd has taken over the port.
//
// With vlan, a container is in that VLAN and sees no tags. With trunk, it tags packets itself. With neither, it gets
// the packets of all VLANs, as an ordinary port of Open vSwitch does.
//
// With vxlanID and remotes, the bridge gets a VXLAN tunnel to each of these hosts, which have the same configuration:
// remotes may name all hosts, including this one. The tunnels are in the VLAN of vlan or trunk, so several networks
// can share a bridge. A tunnel is removed with the last container of the bridge that needs it. Without mtu, the
// container's MTU is that of the route to the remotes, less 50 bytes for the tunnel's headers (70 if a remote has an
// IPv6 address).
//
// Rows of ports carry the attachment's mark in external_ids (fairlead), and ovs-cni's contIface and contNetns:
// ovs-vsctl find port external_ids:contIface=eth0. DEL and GC find ports by the mark, also after a restart of the
// host. While ovsdb-server is down, DEL fails with code 11. fairlead repair restores a port, a bridge or a tunnel that
// another program deletes or changes, while the container lives.
//
// The keys bridge, vlan, trunk, mtu, ofport_request and socket_file are those of ovs-cni, which the plugin replaces.
// The differences: the plugin makes a missing bridge, unless requireBridge is set; vlan beside trunk is the VLAN of
// packets without a tag.
//
// Open vSwitch's userspace datapath (datapath_type netdev) needs no kernel module. It does not complete TCP and UDP
// checksums that a container leaves to its network card, so checksum offloading is off on the container's interface
// (ethtool -k: tx off).
package ovs

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/keys"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/addr"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/resource/ovs"
	"github.com/fairlead-cni/fairlead/resource/sysctl"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// Plugin is the ovs plugin.
var Plugin = sdk.Interface("ovs", "connects containers to a bridge of Open vSwitch", want, kinds).KnowsArgs("MAC")

type conf struct {
	// Name of the bridge of Open vSwitch, such as ovs0. Required. The plugin makes the bridge if it does not exist.
	Bridge string `json:"bridge" want:"ifname" lacks:"the name of a bridge of Open vSwitch, such as \"ovs0\""`
	// Refuse a bridge that does not exist, instead of making it. Default: false.
	RequireBridge bool `json:"requireBridge"`
	// Datapath of the bridge: system (the kernel's) or netdev (that of ovs-vswitchd in user space). Default: that of
	// the bridge if it exists, else system.
	DatapathType string `json:"datapath_type" want:"system|netdev"`
	// VLAN of the container, 1 to 4094. With trunk: the VLAN of packets without a tag. Default: 0, no VLAN.
	Vlan int `json:"vlan" want:"0|1..4094" says:"a number from 1 to 4094, or 0 for none"`
	// VLANs that the container tags its packets for. Default: all VLANs, or only vlan if that is set.
	Trunk []trunkItem `json:"trunk"`
	// Number of the VXLAN (VNI), 0 to 16777215, that connects the bridges of the hosts in remotes. Default: no VXLAN.
	VxlanID *int `json:"vxlanID" want:"0..16777215" says:"a number from 0 to 16777215 (24 bits)"`
	// Addresses of the other ends of the VXLAN tunnels, such as ["192.0.2.1", "192.0.2.2"]. The plugin skips the
	// addresses of this host, so all hosts can have the same list.
	Remotes []string `json:"remotes" want:"address" says:"the address of a host, such as 192.0.2.1"`
	// UDP port of the tunnels. Default: 4789.
	VxlanPort int `json:"vxlanPort" want:"0..65535" says:"a number from 1 to 65535"`
	// OpenFlow port number to ask for, 1 to 65279. Default: any free one.
	OFPortRequest int `json:"ofport_request" want:"0..65279" says:"a number from 1 to 65279"`
	// Rate at which the container can receive, in bits per second, at least 1000 (queueing discipline linux-htb).
	// Default: 0, no limit.
	IngressRate int64 `json:"ingressRate" want:"0|1000..4000000000000" says:"1000 to 4000000000000, or 0 for no limit"`
	// Rate at which the container can send, in bits per second, at least 1000. Open vSwitch drops packets above it
	// (ingress_policing_rate). Default: 0, no limit.
	EgressRate int64 `json:"egressRate" want:"0|1000..4000000000000" says:"1000 to 4000000000000, or 0 for no limit"`
	// Bits that the container can send at once, without a limit. Default: a tenth of egressRate, at least 80000.
	EgressBurst int64 `json:"egressBurst" want:"0|1000..4000000000000" says:"1000 to 4000000000000, or 0 for no limit"`
	// Path of the Unix socket of ovsdb-server. Default: /var/run/openvswitch/db.sock.
	SocketFile string `json:"socket_file" want:"/^(unix:)?[/]/" says:"the absolute path of a Unix socket, such as /var/run/openvswitch/db.sock"`
	keys.Cable
	keys.Conflicts
}

type trunkItem struct {
	// First VLAN of a range.
	MinID *int `json:"minID" want:"1..4094"`
	// Last VLAN of a range.
	MaxID *int `json:"maxID" want:"1..4094"`
	// A single VLAN.
	ID *int `json:"id" want:"1..4094"`
}

// db is the socket of the database.
func (c conf) db() ovs.DB {
	return ovs.DB(cmp.Or(strings.TrimPrefix(c.SocketFile, "unix:"), string(ovs.DefaultDB)))
}

// kinds are in the order of the plan: a port goes before its link.
func kinds(c conf) []plan.Kind {
	return []plan.Kind{link.VethKind(""), ovs.PortKind(c.db())}
}

func want(c conf, r *sdk.Request) (answer sdk.Answer, err error) {
	c.MTU = c.LinkMTU(r)
	remotes, trunks, err := c.validate(r)
	if err != nil {
		return answer, err
	}
	if c.VxlanID != nil && len(remotes) == 0 {
		answer.Warn("vxlanID: %d: has no effect: remotes names no other host", *c.VxlanID)
	}
	host, p, err := c.HostName(r)
	if err != nil {
		return answer, err
	}
	if host == c.Bridge {
		return answer, spec.Errorf(spec.CodeConfig, "hostInterfaceName: %q: is the name of the bridge", host)
	}
	db, vlans := c.db(), ovs.VLANs{Tag: c.Vlan, Trunks: trunks}
	bridge := ovs.Bridge{DB: db, Name: c.Bridge, Datapath: c.DatapathType}
	p = append(p, plan.Required(ovs.Service{DB: db}))
	if c.RequireBridge {
		p = append(p, plan.Required(bridge))
	} else {
		p = append(p, plan.Shared(bridge))
	}
	var overlay ovs.Overlay
	if len(remotes) > 0 {
		overlay = ovs.Overlay{VNI: *c.VxlanID, Remotes: remotes, DstPort: c.VxlanPort}
	}
	p = append(p,
		link.Veth{Owner: r.Owner, Name: r.IfName, Host: host, MTU: c.mtu(remotes), MAC: c.MAC(r), HostMAC: r.HostMAC(),
			Switched: true, Down: c.IPv6 == "off"},
		ovs.Port{DB: db, Owner: r.Owner, Bridge: c.Bridge, Link: host, Netns: r.Netns, VLANs: vlans,
			OFPort: c.OFPortRequest, Limits: c.limits(), Overlay: overlay})
	if len(remotes) > 0 {
		p = append(p, plan.Shared(ovs.Tunnels{DB: db, Bridge: c.Bridge, Overlay: overlay, VLANs: vlans}))
	}
	if c.DatapathType != "system" { // netdev is ovs-vswitchd's own, in user space
		p = append(p, ovs.OffloadOff{Bridge: bridge, Link: r.IfName})
	}
	if c.IPv6 == "off" { // before the link is up, so that it never gets an address of its own
		p = append(p, sysctl.IPv6Off{Link: r.IfName}, link.Up{Link: r.IfName})
	}
	if !r.L3 {
		p = append(p, addr.Announce{Link: r.IfName, Port: host})
	}
	answer.Plan = append(p, r.Addressing(sdk.Addressing{Link: r.IfName, Port: host, Probe: c.Probe(),
		NoDAD: c.Off()})...)
	return answer, nil
}

// mtu is that of the container's link.
func (c conf) mtu(remotes []netip.Addr) resource.MTU {
	switch {
	case c.MTU != 0 || len(remotes) == 0:
		return c.MTU
	case slices.ContainsFunc(remotes, netip.Addr.Is6):
		return resource.AutoLess(70)
	}
	return resource.AutoLess(50)
}

func (c conf) limits() ovs.Limits {
	l := ovs.Limits{Shaping: c.IngressRate, Policing: c.EgressRate, PolicingBurst: c.EgressBurst}
	if l.Policing != 0 && l.PolicingBurst == 0 {
		l.PolicingBurst = max(l.Policing/10, 80_000)
	}
	return l
}

// validate refuses what Open vSwitch would not take, or would go without effect.
func (c conf) validate(r *sdk.Request) (remotes []netip.Addr, trunks []int, err error) {
	switch {
	case c.VxlanID == nil && len(c.Remotes) > 0:
		err = spec.Errorf(spec.CodeConfig,
			"vxlanID: is missing: remotes names hosts; want a number from 0 to 16777215 (24 bits)")
	case c.EgressBurst != 0 && c.EgressRate == 0:
		err = spec.Errorf(spec.CodeConfig, "egressBurst: %d: has no effect without egressRate; set it, or remove the "+
			"key",
			c.EgressBurst)
	}
	if err == nil {
		err = c.Cable.Validate(r)
	}
	if err == nil {
		err = c.Conflicts.Validate(r)
	}
	if err == nil {
		remotes, err = c.remotes()
	}
	if err == nil {
		trunks, err = c.trunks()
	}
	return remotes, trunks, err
}

// remotes are the hosts, each once.
func (c conf) remotes() (all []netip.Addr, err error) {
	for i, s := range c.Remotes {
		a, err := netip.ParseAddr(s)
		if err != nil || a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() {
			return nil, spec.Errorf(spec.CodeConfig, "remotes[%d]: %q: want the address of a host, such as 192.0.2.1",
				i, s)
		}
		if a = a.Unmap(); !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return all, nil
}

// trunks are the VLANs of trunk, in order.
func (c conf) trunks() (all []int, err error) {
	for i, t := range c.Trunk {
		first, last, err := t.span(fmt.Sprintf("trunk[%d]", i))
		if err != nil {
			return nil, err
		}
		for id := first; id <= last; id++ {
			all = append(all, id)
		}
		if t.ID != nil {
			all = append(all, *t.ID)
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// span is a range, which is empty (first is above last) where only id is given.
func (t trunkItem) span(path string) (first, last int, err error) {
	switch {
	case t.MinID == nil && t.MaxID != nil:
		return 0, 0, spec.Errorf(spec.CodeConfig, "%s.minID: is missing: maxID is %d; want a number from 1 to %d", path,
			*t.MaxID, *t.MaxID)
	case t.MinID != nil && t.MaxID == nil:
		return 0, 0, spec.Errorf(spec.CodeConfig, "%s.maxID: is missing: minID is %d; want a number from %d to 4094",
			path, *t.MinID, *t.MinID)
	case t.MinID != nil && *t.MinID > *t.MaxID:
		return 0, 0, spec.Errorf(spec.CodeConfig, "%s.minID: %d: is above maxID, %d; want a number from 1 to %d", path,
			*t.MinID, *t.MaxID, *t.MaxID)
	case t.MinID == nil && t.ID == nil:
		return 0, 0, spec.Errorf(spec.CodeConfig, "%s: is empty: want id, or minID and maxID", path)
	case t.MinID == nil:
		return 1, 0, nil
	}
	return *t.MinID, *t.MaxID, nil
}
