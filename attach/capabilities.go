package attach

import "net/netip"

// Capabilities has the values that a runtime may pass to plugins (conventions of the specification). Zero values are
// not passed.
type Capabilities struct {
	PortMappings   []PortMapping  // ports to publish on the host
	IPRanges       [][]IPRange    // the IPAM plugin gives an address from each of these sets
	IPs            []netip.Prefix // the addresses that the container is to have
	MAC            string         // of the container's interface
	Bandwidth      *Bandwidth
	DNS            *DNS
	Aliases        []string // names of the container in the network
	DeviceID       string   // of the device that the container gets, such as a PCI address
	InfinibandGUID string   // of the container's interface
	CgroupPath     string   // of the container's cgroup
}

// A PortMapping publishes a port of the container on the host, or a range of ports.
type PortMapping struct {
	HostPort      int    `json:"hostPort"`
	HostPortEnd   int    `json:"hostPortEnd,omitempty"` // the last of a range that begins at HostPort; 0: one port
	ContainerPort int    `json:"containerPort"`         // the first of as many
	Protocol      string `json:"protocol"`              // tcp, udp or sctp
	HostIP        string `json:"hostIP,omitempty"`      // empty: every address of the host
}

// An IPRange is a part of a subnet from which addresses are allocated.
type IPRange struct {
	Subnet     netip.Prefix `json:"subnet"`
	RangeStart netip.Addr   `json:"rangeStart,omitzero"` // invalid: the first address of the subnet that may be given
	RangeEnd   netip.Addr   `json:"rangeEnd,omitzero"`   // invalid: the last one
	Gateway    netip.Addr   `json:"gateway,omitzero"`    // invalid: the subnet's first address
}

// Bandwidth has limits in bits per second, and bursts in bits, as seen from the container. 0 is no limit.
type Bandwidth struct {
	IngressRate  uint64 `json:"ingressRate,omitempty"`
	IngressBurst uint64 `json:"ingressBurst,omitempty"`
	EgressRate   uint64 `json:"egressRate,omitempty"`
	EgressBurst  uint64 `json:"egressBurst,omitempty"`
}

// DNS has the resolver settings for the container.
type DNS struct {
	Searches []string `json:"searches,omitempty"`
	Servers  []string `json:"servers,omitempty"`
}

// Map returns c in the form of Attachment.Capabilities.
func (c Capabilities) Map() map[string]any {
	all := map[string]any{}
	say := func(name string, value any, said bool) {
		if said {
			all[name] = value
		}
	}
	say("portMappings", c.PortMappings, len(c.PortMappings) > 0)
	say("ipRanges", c.IPRanges, len(c.IPRanges) > 0)
	say("ips", c.IPs, len(c.IPs) > 0)
	say("mac", c.MAC, c.MAC != "")
	say("bandwidth", c.Bandwidth, c.Bandwidth != nil)
	say("dns", c.DNS, c.DNS != nil)
	say("aliases", c.Aliases, len(c.Aliases) > 0)
	say("deviceID", c.DeviceID, c.DeviceID != "")
	say("infinibandGUID", c.InfinibandGUID, c.InfinibandGUID != "")
	say("cgroupPath", c.CgroupPath, c.CgroupPath != "")
	return all
}
