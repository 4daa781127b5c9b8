package sdk

import "github.com/fairlead-cni/fairlead/spec"

// Conflicts is the key of plugins whose containers may share a segment with machines that nobody here knows of.
type Conflicts struct {
	ConflictDetection string `json:"conflictDetection" want:"off|probe"` // "probe": ask the segment, for a second or two, whether anybody has an address before the container gets it, and fail with code 11 and the MAC of who has it; "off": ask nobody; default: only for IPv6, where the plugin's other keys do not say otherwise. An ARP probe (RFC 5227) is sent three times in 0.5 to 1.2 seconds, and answers are waited for as long as half a second more; the RFC's own spans, of 4 to 7 seconds, are for links that sleep. IPv6's duplicate address detection is the kernel's
}

const (
	conflictsProbe = "probe"
	conflictsOff   = "off"
)

// Validate refuses what would go without effect.
func (c Conflicts) Validate(r *Request) error {
	if c.Probe() && !r.L3 && len(r.IPs) == 0 && r.verb == "ADD" {
		return spec.Errorf(spec.CodeConfig,
			"conflictDetection: %q: there is no address to ask for; set ipam, or leave the key out", c.ConflictDetection)
	}
	return nil
}

// Probe reports whether addresses are to be asked for.
func (c Conflicts) Probe() bool { return c.ConflictDetection == conflictsProbe }

// Off reports whether nobody is to be asked.
func (c Conflicts) Off() bool { return c.ConflictDetection == conflictsOff }
