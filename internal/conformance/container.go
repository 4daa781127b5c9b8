package conformance

import (
	"cmp"
	"encoding/json"
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
	given             *spec.Result // to a chained plugin
	result            *spec.Result // what ADD printed, or else what is given
}

// previous is prevResult in a version.
func (c *container) previous(v spec.Version) json.RawMessage {
	switch {
	case c == nil || c.result == nil:
		return nil
	case c.prev != nil && c.result.CNIVersion == v:
		return c.prev
	case !v.Known():
		v = spec.Newest
	}
	as := *c.result
	as.CNIVersion = v
	return must(json.Marshal(as))
}

// nameserver is in the results of the suite's plugins.
const nameserver = "10.90.0.1"

// gateway is the gateway of the addresses of the suite's IPAM plugin.
func gateway() netip.Addr { return netip.AddrFrom4([4]byte{10, 90, 0, 1}) }

// container makes a container. The address that it is to get follows from how many there are.
func (t *trial) container(id string) *container {
	applies(!t.subject.Single || t.containers == 0, "the host has room for one attachment to this network")
	t.containers++
	t.addresses++
	c := &container{id: id, netns: filepath.Join("/run/netns", id), ifName: t.ifName()}
	c.addr = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 90, 0, byte(1 + t.addresses)}), 24)
	err := nstest.MakeNS(c.netns)
	if err == nil && t.subject.Kind == Chained {
		err = t.under(c)
	}
	if err != nil {
		require(fmt.Errorf("make a container: %w", err))
	}
	return c
}

func (t *trial) ifName() string { return cmp.Or(t.subject.IfName, "eth0") }
