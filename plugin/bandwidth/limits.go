package bandwidth

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	"github.com/fairlead-cni/fairlead/resource/shape"
	"github.com/fairlead-cni/fairlead/spec"
)

// limits are the rates and bursts of both directions, as the container sees them.
type limits struct {
	// Rate at which the container can receive, in bits per second, at least 8. Default: 0, no limit.
	IngressRate *bits `json:"ingressRate" want:"0|8..9223372036854775807" says:"bits a second, at least 8; 0 is no limit"`
	// Bits that the container can receive at once, without a limit. Default: what the rate allows in 50 ms, and at
	// least 10 packets of 1514 bytes.
	IngressBurst *bits `json:"ingressBurst" want:"0..34359738359" says:"at most 34359738359 bits"`
	// Rate at which the container can send, in bits per second, at least 8. Default: 0, no limit.
	EgressRate *bits `json:"egressRate" want:"0|8..9223372036854775807" says:"bits a second, at least 8; 0 is no limit"`
	// Bits that the container can send at once, without a limit. Default: what the rate allows in 50 ms, and at least
	// 10 packets of 1514 bytes.
	EgressBurst *bits `json:"egressBurst" want:"0..34359738359" says:"at most 34359738359 bits"`

	// Limit only the packets to and from these subnets. Default: limit all packets.
	ShapedSubnets []netip.Prefix `json:"shapedSubnets"`
	// Do not limit the packets to and from these subnets. Default: limit all packets.
	UnshapedSubnets []netip.Prefix `json:"unshapedSubnets"`
}

// bits is a number that is not negative. A key that is there, even as 0, is told from one that is not.
type bits uint64

// UnmarshalJSON takes a whole number.
func (b *bits) UnmarshalJSON(raw []byte) error {
	if json.Unmarshal(raw, (*uint64)(b)) != nil {
		return errors.New("want a whole number of bits, 0 or more")
	}
	return nil
}

func (b *bits) value() uint64 {
	if b == nil {
		return 0
	}
	return uint64(*b)
}

const (
	// unsetBurst is what runtimes that know no burst write (containerd, CRI-O): as much as fits. It would let half
	// a gigabyte pass before there is any limit, so it is as good as absent.
	unsetBurst = 1<<32 - 1

	mostBits = 8*(1<<32-1) - 1 // tc(8) counts a burst in 32 bits of bytes

	longest = 274 // seconds: htb counts a burst as a time, in 32 bits of 64 ns

	// Less than this at once, and a busy host, whose timers are late, does not reach the rate.
	burstsPerSecond = 20
	leastBurst      = 10 * 1514

	// A queue holds 25 ms of the rate beside the burst, as the reference's does, but of that not more than a
	// burst of 50 ms: else packets would wait for seconds. One packet of the sender's may have 64 KiB until it is cut.
	queuesPerSecond = 40
	leastQueue      = 128 << 10
	uncut           = 64 << 10
)

// parse is the limits to the container and from it.
func (c conf) parse() (ingress, egress shape.Limit, err error) {
	from, path := c.limits, ""
	if from.IngressRate == nil && from.IngressBurst == nil && from.EgressRate == nil && from.EgressBurst == nil {
		from, path = c.RuntimeConfig.Bandwidth, "runtimeConfig.bandwidth."
	}
	subnets, subnetPath := c.limits, ""
	if len(subnets.ShapedSubnets)+len(subnets.UnshapedSubnets) == 0 {
		subnets, subnetPath = c.RuntimeConfig.Bandwidth, "runtimeConfig.bandwidth."
	}
	if err := subnets.validate(subnetPath); err != nil {
		return ingress, egress, err
	}
	if ingress, err = subnets.limit(path+"ingress", from.IngressRate.value(), from.IngressBurst.value()); err != nil {
		return ingress, egress, err
	}
	egress, err = subnets.limit(path+"egress", from.EgressRate.value(), from.EgressBurst.value())
	ingress.From = true // the subnets are of the other side
	return ingress, egress, err
}

func (l limits) validate(path string) error {
	if len(l.ShapedSubnets) > 0 && len(l.UnshapedSubnets) > 0 {
		return spec.Errorf(spec.CodeConfig,
			"%sshapedSubnets and %sunshapedSubnets: set one of them: the first limits only packets of its subnets, "+
				"the second all others", path, path)
	}
	for key, list := range map[string][]netip.Prefix{"shapedSubnets": l.ShapedSubnets,
		"unshapedSubnets": l.UnshapedSubnets} {
		for i, p := range list {
			if !p.IsValid() || p.Addr().Is4In6() {
				return spec.Errorf(spec.CodeConfig, "%s%s[%d]: %v: want a subnet such as 10.0.0.0/8 or fd00::/8", path,
					key, i, p)
			}
		}
	}
	return nil
}

// limit is one direction's token bucket in bytes; zero where there is no limit.
func (l limits) limit(path string, rate, burst uint64) (shape.Limit, error) {
	bad := func(key string, value uint64, format string, args ...any) (shape.Limit, error) {
		return shape.Limit{}, spec.Errorf(spec.CodeConfig, "%s%s: %d: %s", path, key, value,
			fmt.Sprintf(format, args...))
	}
	switch {
	case rate == 0 && burst != 0 && burst != unsetBurst:
		return bad("Burst", burst, "a burst without a rate limits nothing; set %sRate too, or remove both", path)
	case rate == 0:
		return shape.Limit{}, nil
	}
	out := shape.Limit{Rate: rate / 8, Reference: uint32(burst / 8), Only: l.ShapedSubnets, Except: l.UnshapedSubnets}
	usual := min(max(out.Rate/burstsPerSecond, leastBurst), mostBits/8)
	size := burst / 8
	some := len(out.Only)+len(out.Except) > 0
	switch {
	case burst == 0 || burst == unsetBurst:
		size = usual
	case some && size/longest > out.Rate:
		return bad("Burst", burst, "want at most %d bits with shapedSubnets or unshapedSubnets: what the rate allows "+
			"in %d s",
			out.Rate*longest*8, uint64(longest))
	}
	queue := out.Rate/queuesPerSecond + min(size, max(usual, leastQueue))
	if size >= uncut || some {
		queue = max(queue, leastQueue)
	}
	out.Burst, out.Queue = uint32(size), uint32(min(queue, 1<<32-1))
	return out, nil
}
