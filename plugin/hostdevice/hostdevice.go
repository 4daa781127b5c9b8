// Package hostdevice gives a container a network device of the host, which the host is without as long as the container
// has it. It goes back as it was.
package hostdevice

import (
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// Plugin is the host-device plugin.
var Plugin = sdk.Interface("host-device", "gives a container a network device of the host", want)

type conf struct {
	Device     string `json:"device"`     // the device's name on the host; of several ways to say which device, the first one in this list counts
	HWAddr     string `json:"hwaddr"`     // its MAC; bridges, bonds and VLANs that share it do not count
	KernelPath string `json:"kernelpath"` // its path below /sys/devices/
	PCIBusID   string `json:"pciBusID"`   // its PCI address, such as 0000:00:1f.6; one that vfio-pci, uio_pci_generic or igb_uio drives stays where it is, for a program of the container

	RuntimeConfig struct {
		DeviceID string `json:"deviceID"` // the address of the device on its bus, PCI or auxiliary (clause K8); wins over pciBusID
	} `json:"runtimeConfig"`
}

func want(c conf, r *sdk.Request) (plan.Plan, error) {
	h := resource.HostDevice{Owner: r.Owner, Name: r.IfName, Device: c.pick()}
	if r.Verb == "DEL" { // it goes by what is remembered
		return plan.Plan{h}, nil
	}
	if h.Device.Key == "" && r.Verb != "STATUS" {
		return nil, spec.Errorf(spec.CodeConfig, "device: is missing: want one of device, hwaddr, kernelpath, pciBusID, or runtimeConfig.deviceID from the runtime")
	}
	if err := resource.ValidDevice(h.Device); err != nil {
		return nil, err
	}
	if r.Verb == "STATUS" {
		if h.Device.Key == "" { // the runtime says it for each container
			return nil, nil
		}
		return plan.Plan{plan.Required(resource.KnownDevice{Device: h.Device})}, nil
	}
	if d := h.Device; d.ID != "" && resource.UserspaceDriver(d.ID) != "" {
		return plan.Plan{resource.UserspaceDevice{Owner: r.Owner, Name: r.IfName, ID: d.ID, Key: d.Key}}, nil
	}
	if r.Verb == "CHECK" { // a later plugin may have changed them (clause P16)
		h.MAC, h.MTU = r.MAC(""), r.MTU()
	}
	return append(plan.Plan{h}, r.Addressing(sdk.Addressing{Link: r.IfName})...), nil
}

// pick is the device that is meant: what the first key says that says anything.
func (c conf) pick() resource.Device {
	switch {
	case c.Device != "":
		return resource.Device{Key: "device", Link: c.Device}
	case c.HWAddr != "":
		return resource.Device{Key: "hwaddr", MAC: c.HWAddr}
	case c.KernelPath != "":
		return resource.Device{Key: "kernelpath", Path: c.KernelPath}
	case c.RuntimeConfig.DeviceID != "":
		return resource.Device{Key: "runtimeConfig.deviceID", ID: c.RuntimeConfig.DeviceID}
	case c.PCIBusID != "":
		return resource.Device{Key: "pciBusID", Bus: "pci", ID: c.PCIBusID}
	}
	return resource.Device{}
}
