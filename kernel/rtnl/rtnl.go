// Package rtnl speaks rtnetlink: links, bridge ports and their VLANs, addresses, routes, rules and neighbours, and
// their events. The packages above decide what should exist and which attachment owns a link. Qdiscs are in package
// tc.
package rtnl

import (
	"bytes"
	"errors"
	"net/netip"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// newRequest returns a request whose flags come from package unix, where they are int.
func newRequest(typ, flags int, header any) *netlink.Request {
	return netlink.NewRequest(uint16(typ), uint16(flags), header)
}

// linkInfo adds the kind of a link, and the data that this kind has.
func linkInfo(req *netlink.Request, kind string, data func(*netlink.Buffer)) {
	req.Nest(unix.IFLA_LINKINFO, func() {
		req.Attr(unix.IFLA_INFO_KIND, []byte(kind)...)
		if data != nil {
			req.Nest(unix.IFLA_INFO_DATA, func() { data(&req.Buffer) })
		}
	})
}

// Call sends a request and returns the replies of the given type. The error contains the kernel's error number and
// text.
func Call(ns *kernel.NS, req *netlink.Request, reply uint16) (msgs [][]byte, err error) {
	const get = 2 // of the four messages of a kind: RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK, RTM_SETLINK
	if req.Type%4 != get || !ns.Keeps() {
		return call(ns, req, reply)
	}
	question := question{req.Type, req.Flags, string(req.Buffer)}
	return kernel.Once(ns, question, func() ([][]byte, error) { return call(ns, req, reply) })
}

// A question is a request to the kernel, as a question to a view.
type question struct {
	typ, flags uint16
	body       string
}

func call(ns *kernel.NS, req *netlink.Request, reply uint16) (msgs [][]byte, err error) {
	c, err := ns.Conn(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	c.Mu.Lock()
	defer c.Mu.Unlock()
	r := c.Requests()
	r.Begin(req.Type, req.Flags, req.Buffer...)
	if err := c.Send(r); err != nil {
		return nil, err
	}
	var failed error
	interrupted := false
	err = c.Receive(r.First, func(m netlink.Message) bool {
		interrupted = interrupted || m.Flags&unix.NLM_F_DUMP_INTR != 0
		switch m.Type {
		case unix.NLMSG_ERROR, unix.NLMSG_DONE:
			failed = m.Err()
			return false
		case reply:
			msgs = append(msgs, bytes.Clone(m.Body))
		}
		return m.Flags&unix.NLM_F_MULTI != 0
	})
	if err = errors.Join(err, failed); err == nil && interrupted {
		err = errInterrupted
	}
	return msgs, err
}

// errInterrupted means that the data changed during a dump (NLM_F_DUMP_INTR).
var errInterrupted = errors.New("the dump was interrupted by a change")

// Dump returns the replies to a dump request. If the data changed during the dump, Dump repeats the request a few
// times: the kernel warns of such a change and may have left something out.
func Dump(ns *kernel.NS, req *netlink.Request, reply uint16) (msgs [][]byte, err error) {
	for range 5 {
		if msgs, err = Call(ns, req, reply); !errors.Is(err, errInterrupted) {
			return msgs, err
		}
	}
	return msgs, nil // on a host that never rests, this is as good as it gets
}

// Tell sends a request that changes something, and waits for the kernel's acknowledgement.
func Tell(ns *kernel.NS, req *netlink.Request) error {
	_, err := Call(ns, req, 0)
	return err
}

// Family returns the address family of an address: IPv4 or IPv6.
func Family(a netip.Addr) uint8 {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}
