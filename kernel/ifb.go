package kernel

import (
	"fmt"
	"net"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// An IFB is what AddIFB makes: a link that packets can be sent through on their way in.
type IFB struct {
	Name  string
	MAC   net.HardwareAddr
	MTU   int
	Group uint32
	Alias string
}

// AddIFB makes an ifb and sets it up. It gets no address of its own: nobody talks by it.
func (ns *NS) AddIFB(i IFB) error {
	req := ns.Request(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(attrText(unix.IFLA_IFNAME, i.Name))
	req.AddData(nl.NewRtAttr(unix.IFLA_ADDRESS, i.MAC))
	req.AddData(attrU32(unix.IFLA_MTU, uint32(i.MTU)))
	req.AddData(attrU32(unix.IFLA_GROUP, i.Group))
	req.AddData(attrU32(unix.IFLA_NUM_TX_QUEUES, 1))
	req.AddData(attrU32(unix.IFLA_NUM_RX_QUEUES, 1))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(unix.IFLA_INFO_KIND, []byte("ifb"))
	req.AddData(info)
	if err := ns.tell(req); err != nil {
		return fmt.Errorf("add link %s type ifb: %w", i.Name, err)
	}
	return ns.startIFB(i)
}

// startIFB does what the creating message ignores. The kernel sets a link up before it reads how IPv6 is to
// name it, so that takes two.
func (ns *NS) startIFB(i IFB) error {
	err := ns.SetLink(i.Name, LinkChange{Alias: i.Alias, NoLinkLocal: true})
	if is(err, unix.EAFNOSUPPORT) { // IPv6 is off, or has no room in so small an MTU
		err = ns.SetLink(i.Name, LinkChange{Alias: i.Alias})
	}
	if err != nil {
		return err
	}
	return ns.SetLink(i.Name, LinkChange{Up: true})
}
