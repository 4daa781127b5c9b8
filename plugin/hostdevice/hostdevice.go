// Package hostdevice moves a network device of the host into a container, and moves it back at DEL. It restores: name,
// other names and alias, MAC, MTU, queue length, flags, broadcast address, group, GSO and GRO limits, master,
// settings, addresses and routes; and the parameters of a macvlan, macvtap, ipvlan, vlan or vxlan, such as a mode or a
// remote end.
//
// It does not restore queueing disciplines, neighbour entries, and addresses with a lifetime and their routes, which a
// DHCP client of the host gets again. It also does not undo what root in the container changes by ethtool, in /sys
// (gro_flush_timeout, napi_defer_hard_irqs, threaded, rps_cpus, xps_cpus and others of queues), by BPF, of the
// carrier, in parameters of other kinds of devices, in permanent forwarding entries of a vxlan, and in priorities that
// are added to a vlan's.
//
// In the container, the alias of the device is its name on the host. Whatever root in the container does to name,
// alias and index, no other device is taken for it. The exception is a dummy, ifb, tap or wireguard device that was
// deleted in the container and made again with the same index: nothing distinguishes it. If another device takes the
// place of the device while it is moved back, that device goes back into the container before the host gives it an
// address or a master, and DEL or GC fails.
//
// If a living container has deleted or hidden the device, DEL reports that it is missing and succeeds; GC, the next
// DEL and the next ADD search for it again. A physical device also comes back when the container's namespace ends
// before DEL. A virtual device ends with the namespace; of these, only a VLAN is made again.
package hostdevice

import (
	"github.com/fairlead-cni/fairlead/internal/keys"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/hostdev"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// Plugin is the host-device plugin.
var Plugin = sdk.Interface("host-device", "moves a network device of the host into a container", want,
	func(c conf) []plan.Kind {
		return []plan.Kind{hostdev.DeviceKind(c.ways())}
	})

type conf struct {
	// Name of the device on the host. If several keys name a device, all must name the same one. While a container of
	// this network has the device, STATUS succeeds, although no other container can get it. While a container of
	// another network has it, STATUS fails with code 50 and names that container.
	Device string `json:"device" want:"ifname"`
	// MAC of the device. Bridges, bonds and VLANs with the same MAC are ignored.
	HWAddr string `json:"hwaddr" want:"mac"`
	// Path of the device below /sys/devices/, or of its network interface. `readlink -f /sys/class/net/NAME` prints the
	// latter.
	KernelPath string `json:"kernelpath"`
	// PCI address of the device, such as 0000:00:1f.6. A device with the driver vfio-pci, uio_pci_generic or igb_uio is
	// not moved, because a program in the container uses it directly.
	PCIBusID string `json:"pciBusID"`
	keys.Conflicts

	RuntimeConfig struct {
		// Address of the device on its bus, PCI or auxiliary, set by the runtime (clause K8). Takes precedence over
		// pciBusID.
		DeviceID string `json:"deviceID"`
	} `json:"runtimeConfig"`

	userspace bool // programs in user space drive the device themselves, see ReadHost
}

// ReadHost implements sdk.HostReader.
func (c *conf) ReadHost() {
	if ways := c.ways(); len(ways) > 0 && ways[0].ID != "" && hostdev.ValidDevice(ways[0]) == nil {
		c.userspace = hostdev.UserspaceDriver(ways[0].ID) != ""
	}
}

func want(c conf, r *sdk.Request) (sdk.Answer, error) {
	h := hostdev.HostDevice{Owner: r.Owner, Name: r.IfName}
	ways := c.ways()
	if len(ways) > 0 {
		h.Device, h.Also = ways[0], ways[1:]
	}
	if len(ways) == 0 {
		return sdk.Answer{Plan: plan.Plan{plan.Lacking(spec.Errorf(spec.CodeConfig,
			"device: is missing: want one of device, hwaddr, kernelpath, pciBusID, or runtimeConfig.deviceID from "+
				"the runtime"))}}, nil
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
	if d := h.Device; d.ID != "" && (c.userspace || r.InContainer() && r.PrevMAC() == "") {
		return sdk.Answer{Plan: append(p, hostdev.UserspaceDevice{Owner: r.Owner, Name: r.IfName, ID: d.ID,
			Key: d.Key})}, nil
	}
	return sdk.Answer{Plan: append(append(p, h),
		r.Addressing(sdk.Addressing{Link: r.IfName, Probe: c.Probe(), NoDAD: c.Off()})...)}, nil
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
