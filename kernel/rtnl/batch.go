package rtnl

import (
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// An Edit is the object of a message to be created, or to be deleted.
type Edit struct {
	Message
	How  How  // as in Make
	Drop bool // delete it; an object that does not exist is no error
}

// atOnce is how many edits go out in one system call. The kernel's answers to them fit into the smallest receive buffer
// that a socket has by default.
const atOnce = 64

// Batch makes many edits in order, with few system calls. It goes on after an error. The answer has the error of each
// edit, or nil.
func Batch(ns *kernel.NS, edits []Edit) []error {
	errs := make([]error, len(edits))
	for first := 0; first < len(edits); first += atOnce {
		last := min(first+atOnce, len(edits))
		if err := batch(ns, edits[first:last], errs[first:last]); err != nil {
			for i := first; i < len(edits); i++ {
				errs[i] = err
			}
			break
		}
	}
	return errs
}

// batch sends edits in one system call, and sets the error of each. Its own error is that of the socket.
func batch(ns *kernel.NS, edits []Edit, errs []error) error {
	c, err := ns.Conn(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	c.Mu.Lock()
	defer c.Mu.Unlock()
	r := c.Requests()
	for _, e := range edits {
		if e.Drop {
			r.Begin(e.Type+1, unix.NLM_F_ACK, e.Body...) // RTM_DELROUTE and so on
		} else {
			r.Begin(e.Type, uint16(unix.NLM_F_CREATE|unix.NLM_F_ACK|int(e.How)), e.Body...)
		}
	}
	if err := c.Send(r); err != nil {
		return err
	}
	return c.Receive(r.First, func(m netlink.Message) bool {
		i := int(m.Seq - r.First)
		if i >= len(edits) || m.Type != unix.NLMSG_ERROR {
			return true
		}
		errs[i] = m.Err()
		if edits[i].Drop {
			errs[i] = netlink.Except(errs[i], absent()...)
		}
		return i < len(edits)-1
	})
}
