package kernel

import (
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A Move is what MoveLink does to a link; a zero field leaves it as it is.
type Move struct {
	To    *NS    // where it goes
	Name  string // it has there
	Index int    // likewise (Linux 5.13, others choose one); EBUSY where that is another link's
	Alias string
	Group *uint32
	MAC   net.HardwareAddr
	MTU   int
	Up    bool
	Down  bool
}

// MoveLink moves a link into another namespace, or renames it where it is, in one message. The kernel takes it out of
// the one namespace under its old name and first then renames it, in the other: nobody here sees another name of it.
// It goes down for that, and loses master, addresses, routes and settings.
//
// What stops it halfway is an error that leaves the link wherever it is by then.
func (ns *NS) MoveLink(index int, m Move) error {
	req := newRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	if m.Up || m.Down {
		msg.Change |= unix.IFF_UP
	}
	if m.Up {
		msg.Flags |= unix.IFF_UP
	}
	req.AddData(msg)
	if m.To != nil {
		req.AddData(attrU32(unix.IFLA_NET_NS_FD, uint32(m.To.FD)))
	}
	if m.Name != "" {
		req.AddData(attrText(unix.IFLA_IFNAME, m.Name))
	}
	if m.Index != 0 {
		req.AddData(attrU32(unix.IFLA_NEW_IFINDEX, uint32(m.Index)))
	}
	if m.Group != nil {
		req.AddData(attrU32(unix.IFLA_GROUP, *m.Group))
	}
	if m.MAC != nil {
		req.AddData(nl.NewRtAttr(unix.IFLA_ADDRESS, m.MAC))
	}
	if m.MTU != 0 {
		req.AddData(attrU32(unix.IFLA_MTU, uint32(m.MTU)))
	}
	if m.Alias != "" {
		req.AddData(nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(m.Alias)))
	}
	err := ns.tell(req)
	switch {
	case is(err, unix.ENODEV):
		err = ErrNoLink
	case is(err, unix.EEXIST):
		err = fmt.Errorf("%s: %w", m.Name, ErrLinkExists)
	}
	if err != nil {
		return fmt.Errorf("move link #%d: %w", index, err)
	}
	return nil
}

// SetAlias gives a link an alias; an empty one takes it off.
func (ns *NS) SetAlias(index int, alias string) error {
	req := newRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(alias)))
	if err := ns.tell(req); err != nil {
		return fmt.Errorf("alias of link #%d: %w", index, err)
	}
	return nil
}

// IDFor is the number that other has for the namespace that ns calls id, or -1 where it has none yet, or that cannot be
// told (before Linux 5.0).
func (ns *NS) IDFor(other *NS, id int) (int, error) {
	target, err := ns.ID(other)
	if err != nil || target < 0 || id < 0 {
		return -1, err
	}
	req := newRequest(unix.RTM_GETNSID, 0)
	req.AddData(nl.NewRtGenMsg())
	req.AddData(attrU32(unix.NETNSA_NSID, uint32(id)))
	req.AddData(attrU32(unix.NETNSA_TARGET_NSID, uint32(target)))
	msgs, err := ns.Call(req, unix.RTM_NEWNSID)
	if err != nil || len(msgs) == 0 {
		return -1, err
	}
	there, told := -1, false
	EachAttr(msgs[0][min(4, len(msgs[0])):], func(kind uint16, v []byte) {
		switch kind {
		case unix.NETNSA_NSID:
			there = int(int32(u32(v)))
		case unix.NETNSA_CURRENT_NSID: // an older kernel answers with the number that it was asked about
			told = true
		}
	})
	if !told {
		there = -1
	}
	return there, nil
}

// BootID tells this boot from others.
func BootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
}
