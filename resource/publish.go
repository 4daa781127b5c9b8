package resource

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
)

// A PortMapping is one port of the host that leads to a port of the container.
type PortMapping struct {
	Protocol                string     // tcp, udp or sctp
	HostIP                  netip.Addr // invalid or unspecified: any address of the host
	HostPort, ContainerPort uint16
}

// A Publish makes ports of the host lead to the container.
type Publish struct {
	Owner    spec.Owner
	Ports    []PortMapping
	To4, To6 netip.Prefix // the container's addresses, each with its subnet's length; invalid: none
	SNAT     bool         // masquerade what would not come back by itself: from the container, its subnet, 127.0.0.1
	MasqAll  bool         // masquerade everything that goes to these ports

	// Conditions4 and Conditions6 are what else a packet has to fulfil, in the words of nft(8) or iptables(8).
	Conditions4, Conditions6 []string
}

func (p Publish) String() string {
	ports := make([]string, len(p.Ports))
	for i, m := range p.Ports {
		ports[i] = m.String()
	}
	return line("publish", strings.Join(ports, ", "), opt("dnat ip to", p.To4), opt("dnat ip6 to", p.To6),
		flag("snat", p.SNAT), flag("masqall", p.MasqAll),
		opt("where ip", strings.Join(p.Conditions4, " ")), opt("where ip6", strings.Join(p.Conditions6, " ")))
}

// String is "tcp dport 8080 : 80", with "ip daddr 192.0.2.1 " before it where an address is given.
func (m PortMapping) String() string {
	s := fmt.Sprintf("%s dport %d : %d", m.Protocol, m.HostPort, m.ContainerPort)
	if m.HostIP.IsValid() && !m.HostIP.IsUnspecified() {
		s = "daddr " + m.HostIP.String() + " " + s
	}
	return s
}

// Ensure implements plan.Resource.
func (p Publish) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	return false, errors.ErrUnsupported
}

// Verify implements plan.Resource.
func (p Publish) Verify(ctx context.Context, w *kernel.World) error { return errors.ErrUnsupported }

// Remove implements plan.Remover. It needs only the owner.
func (p Publish) Remove(ctx context.Context, w *kernel.World) error { return errors.ErrUnsupported }
