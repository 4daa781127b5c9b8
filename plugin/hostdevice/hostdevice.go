// Package hostdevice gives a container a network device of the host, which the host is without as long as the container
// has it. It goes back as it was: name, other names and alias, MAC, MTU, queue length, flags, broadcast address, group,
// GSO and GRO limits, master, settings, addresses and routes, and of a macvlan, macvtap, ipvlan, vlan or vxlan its
// kind's own parameters, such as a mode or a remote end. What stays lost are queueing disciplines, entries of
// neighbours, and addresses with a lifetime and the routes from them, which a DHCP client of the host gets again. What
// stays changed is what a container's root changes by ethtool, in /sys (gro_flush_timeout, napi_defer_hard_irqs,
// threaded, rps_cpus, xps_cpus and others of queues), of its carrier, by BPF, the parameters of other kinds, the
// permanent forwarding entries of a vxlan, and the priorities that he adds to a vlan's.
//
// Meanwhile its alias is its name on the host, and whatever a container's root does to name, alias and index, no other
// link is taken for it, but for what nothing tells from another one of its kind, a dummy, an ifb, a tap or a wireguard:
// one that was deleted in there, and made again under its index. A link that is put in the device's place while that is
// brought home goes back into the container before the host gives it an address or a master, and that DEL or GC fails.
// A device that a living container has deleted or hides is not given back by DEL, which says so and succeeds; GC, the
// next DEL and the next ADD look for it again. A card comes back also when the container's namespace ends before DEL. A
// virtual device ends with that; of those only a VLAN is made again.
package hostdevice

import (
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/hostdev"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// Plugin is the host-device plugin.
var Plugin = sdk.Interface("host-device", "gives a container a network device of the host", want,
	func(c conf) []plan.Kind {
		return []plan.Kind{hostdev.DeviceKind(c.ways())}
	})

type conf struct {
	Device     string `json:"device" want:"ifname"` // the device's name on the host; several ways to say which device have to say the same one. STATUS is ready while a container of the network has the device, though no other would get it, for a runtime that asks takes a network that is not ready for a host that is not, and the device does what it is for; it is code 50 while a container of another network has it, and says which
	HWAddr     string `json:"hwaddr" want:"mac"`    // its MAC; bridges, bonds and VLANs that share it do not count
	KernelPath string `json:"kernelpath"`           // its path below /sys/devices/, or that of its link, which /sys/class/net/NAME leads to
	PCIBusID   string `json:"pciBusID"`             // its PCI address, such as 0000:00:1f.6; one that vfio-pci, uio_pci_generic or igb_uio drives stays where it is, for a program of the container
	sdk.Conflicts

	RuntimeConfig struct {
		DeviceID string `json:"deviceID"` // the address of the device on its bus, PCI or auxiliary (clause K8); wins over pciBusID
	} `json:"runtimeConfig"`
}

func want(c conf, r *sdk.Request) (sdk.Answer, error) {
	h := hostdev.HostDevice{Owner: r.Owner, Name: r.IfName}
	ways := c.ways()
	if len(ways) > 0 {
		h.Device, h.Also = ways[0], ways[1:]
	}
	if len(ways) == 0 {
		return sdk.Answer{Plan: plan.Plan{plan.Lacking(spec.Errorf(spec.CodeConfig,
			"device: is missing: want one of device, hwaddr, kernelpath, pciBusID, or runtimeConfig.deviceID from the runtime"))}}, nil
	}
	for _, d := range ways {
		if err := hostdev.ValidDevice(d); err != nil {
			return sdk.Answer{}, err
		}
	}
	var p plan.Plan
	for i, d := range ways {
		p = append(p, plan.Prerequisite(hostdev.KnownDevice{Device: d, Network: r.Network, Also: ways[i+1:]}))
	}
	if err := c.Conflicts.Validate(r); err != nil {
		return sdk.Answer{}, err
	}
	// What ADD found is what CHECK is about: only a link has an address.
	if d := h.Device; d.ID != "" && (hostdev.UserspaceDriver(d.ID) != "" || r.InContainer() && r.PrevMAC() == "") {
		return sdk.Answer{Plan: append(p, hostdev.UserspaceDevice{Owner: r.Owner, Name: r.IfName, ID: d.ID, Key: d.Key})}, nil
	}
	return sdk.Answer{Plan: append(append(p, h), r.Addressing(sdk.Addressing{Link: r.IfName, Conflicts: c.Conflicts})...)}, nil
}

// ways are those by which the configuration says which device.
func (c conf) ways() (ways []hostdev.Device) {
	if c.RuntimeConfig.DeviceID != "" {
		c.PCIBusID = ""
	}
	all := []hostdev.Device{{Key: "device", Link: c.Device}, {Key: "hwaddr", MAC: c.HWAddr}}
	all = append(all, hostdev.DeviceAt("kernelpath", c.KernelPath)...)
	all = append(all, hostdev.Device{Key: "runtimeConfig.deviceID", ID: c.RuntimeConfig.DeviceID},
		hostdev.Device{Key: "pciBusID", Bus: "pci", ID: c.PCIBusID})
	for _, d := range all {
		if d.Link+d.MAC+d.Path+d.ID != "" {
			ways = append(ways, d)
		}
	}
	return ways
}
