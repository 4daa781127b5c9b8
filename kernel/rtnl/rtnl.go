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
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// newRequest is an empty rtnetlink request, to be filled with the library's package nl and sent by Call. What a
// kind needs in one message the library's own calls often say in several.
func newRequest(proto, flags int) *nl.NetlinkRequest { return nl.NewNetlinkRequest(proto, flags) }

// Call sends a request and returns the replies of the given type. The error contains the kernel's error number and
// text. Call replaces the library's Execute, which panics if a failed dump ends with a text.
func Call(ns *kernel.NS, req *nl.NetlinkRequest, reply uint16) (msgs [][]byte, err error) {
	const get = 2 // of the four messages of a kind: RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK, RTM_SETLINK
	if req.Type%4 != get || !ns.Keeps() {
		return call(ns, req, reply)
	}
	req.Seq = 0
	question := request(req.Serialize())
	return kernel.Once(ns, question, func() ([][]byte, error) { return call(ns, req, reply) })
}

// request is a message to the kernel without a sequence number, as a question to a view.
type request string

func call(ns *kernel.NS, req *nl.NetlinkRequest, reply uint16) (msgs [][]byte, err error) {
	c, err := ns.Conn(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.Seq++
	req.Seq = c.Seq
	if err := c.Write(req.Serialize()); err != nil {
		return nil, err
	}
	var failed error
	interrupted := false
	err = c.Receive(req.Seq, func(m netlink.Message) bool {
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
		err = nl.ErrDumpInterrupted
	}
	return msgs, err
}

// Dump returns the replies to a dump request. If the data changed during the dump, Dump repeats the request a few
// times: the kernel warns of such a change and may have left something out.
func Dump(ns *kernel.NS, reply uint16, build func() *nl.NetlinkRequest) (msgs [][]byte, err error) {
	for range 5 {
		if msgs, err = Call(ns, build(), reply); !errors.Is(err, nl.ErrDumpInterrupted) {
			return msgs, err
		}
	}
	return msgs, nil // on a host that never rests, this is as good as it gets
}

// Tell sends a request that changes something, and waits for the kernel's acknowledgement.
func Tell(ns *kernel.NS, req *nl.NetlinkRequest) error {
	_, err := Call(ns, req, 0)
	return err
}

// The library finds out its byte order at the first call and keeps it unguarded: here, before any goroutine can call.
var _ = nl.NativeEndian()

func attrU32(kind int, v uint32) *nl.RtAttr { return nl.NewRtAttr(kind, nl.Uint32Attr(v)) }

func attrIP(kind int, a netip.Addr) *nl.RtAttr { return nl.NewRtAttr(kind, a.AsSlice()) }

// AttrText returns an attribute that contains a text and a terminating zero byte.
func AttrText(kind int, s string) *nl.RtAttr { return nl.NewRtAttr(kind, nl.ZeroTerminated(s)) }

// family is the AF_ of an address.
func family(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
