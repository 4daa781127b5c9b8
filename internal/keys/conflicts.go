package keys

import (
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// Conflicts is the key of plugins whose containers may share a network segment with machines outside this host.
type Conflicts struct {
	// Whether to check that no other machine on the network has the container's address. probe: check, and fail with
	// code 11 and the MAC of the machine that answers; this takes one or two seconds. off: do not check. For IPv4, the
	// plugin sends three ARP probes (RFC 5227) in 0.5 to 1.2 seconds, and waits for answers half a second longer. The
	// RFC itself waits 4 to 7 seconds, for links that sleep. For IPv6, the kernel checks (duplicate address detection).
	// Default: only IPv6 is checked, unless another key of the plugin, such as enabledad of bridge, says otherwise.
	ConflictDetection string `json:"conflictDetection" want:"off|probe"`
}

const (
	conflictsProbe = "probe"
	conflictsOff   = "off"
)

// Validate refuses, with code 7, a probe for an interface that gets no address.
func (c Conflicts) Validate(r *sdk.Request) error {
	if c.Probe() && !r.L3 && len(r.IPs) == 0 {
		return spec.Errorf(spec.CodeConfig,
			"conflictDetection: %q: the interface gets no address to check; set ipam, or remove the key",
			c.ConflictDetection)
	}
	return nil
}

// Probe reports whether the configuration asks for probes.
func (c Conflicts) Probe() bool { return c.ConflictDetection == conflictsProbe }

// Off reports whether the configuration turns duplicate address detection off.
func (c Conflicts) Off() bool { return c.ConflictDetection == conflictsOff }
