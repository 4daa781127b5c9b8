package conformance

import (
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

// A container is a network namespace, and what a runtime knows of its attachment.
type container struct {
	id, netns, ifName string
	addr              netip.Prefix // that the suite's IPAM plugin gives
	prev              []byte       // what ADD printed
	result            *spec.Result
}

// gateway is the gateway of the addresses of the suite's IPAM plugin.
func gateway() netip.Addr { return netip.AddrFrom4([4]byte{10, 90, 0, 1}) }

// container makes a container. The address that it is to get follows from how many there are.
func (t *trial) container(id string) (*container, error) {
	if t.subject.Single && t.containers > 0 {
		return nil, unfit("the host has room for one attachment to this network")
	}
	t.containers++
	c := &container{id: id, netns: filepath.Join("/run/netns", id), ifName: t.ifName()}
	c.addr = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 90, 0, byte(1 + t.containers)}), 24)
	if err := nstest.MakeNS(c.netns); err != nil {
		return nil, fmt.Errorf("make a container: %w", err)
	}
	return c, nil
}

func (t *trial) ifName() string {
	if t.subject.IfName != "" {
		return t.subject.IfName
	}
	return "eth0"
}
