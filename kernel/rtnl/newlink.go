package rtnl

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ErrLinkExists says that a link of that name was there before, and that it stayed as it was.
var ErrLinkExists = errors.New("an interface of that name exists already")

// NameTaken is that error about a link of a container.
func NameTaken(name string) error {
	return spec.AsError(fmt.Errorf("in the container: %s: %w", name, ErrLinkExists), 0).
		WithHint("Choose another name with -i NAME (CNI_IFNAME), or delete the interface that has it in the container.")
}

// A NewLink is what AddLink makes. A zero field is left to the kernel.
type NewLink struct {
	Name   string
	Kind   string     // ip(8)'s type: macvlan, ipvlan, vlan, dummy, vrf, …
	NS     *kernel.NS // where it is to be; nil: in the namespace that makes it
	Index  int        // in NS
	Parent int        // index of the link below, in the namespace that makes it
	MAC    net.HardwareAddr
	MTU    int
	Group  uint32 // see LinkGroup
	Alias  string // see Tag
	Queues int    // in each direction
	Up     bool   // born up: whatever has to be written before its first packet has to be written before
	Data   func(data *nl.RtAttr)
}

// AddLink makes a link: in one message it is born in its namespace, under its name, with MAC, MTU and group, so that
// nobody ever sees it half made. Where one of that name is there already, the error is ErrLinkExists.
//
// The kernel ignores the alias in that message. Where the second one fails the link is deleted again.
func AddLink(ns *kernel.NS, l NewLink) error {
	in := l.NS
	if in == nil {
		in = ns
	}
	req := newRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(l.Index)
	if l.Up {
		msg.Flags, msg.Change = unix.IFF_UP, unix.IFF_UP
	}
	req.AddData(msg)
	req.AddData(AttrText(unix.IFLA_IFNAME, l.Name))
	if in != ns {
		req.AddData(attrU32(unix.IFLA_NET_NS_FD, uint32(in.FD)))
	}
	if l.Parent != 0 {
		req.AddData(attrU32(unix.IFLA_LINK, uint32(l.Parent)))
	}
	if l.MAC != nil {
		req.AddData(nl.NewRtAttr(unix.IFLA_ADDRESS, l.MAC))
	}
	if l.MTU != 0 {
		req.AddData(attrU32(unix.IFLA_MTU, uint32(l.MTU)))
	}
	if l.Group != 0 {
		req.AddData(attrU32(unix.IFLA_GROUP, l.Group))
	}
	if l.Queues != 0 {
		req.AddData(attrU32(unix.IFLA_NUM_TX_QUEUES, uint32(l.Queues)))
		req.AddData(attrU32(unix.IFLA_NUM_RX_QUEUES, uint32(l.Queues)))
	}
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(unix.IFLA_INFO_KIND, []byte(l.Kind))
	if l.Data != nil {
		l.Data(info.AddRtAttr(unix.IFLA_INFO_DATA, nil))
	}
	req.AddData(info)
	err := Tell(ns, req)
	if netlink.Is(err, unix.EEXIST) {
		err = ErrLinkExists
	}
	if netlink.Is(err, unix.EOPNOTSUPP) && NoKind(ns, l.Kind) != nil {
		return fmt.Errorf("%w: %w", noKind(l.Kind), err)
	}
	if err != nil {
		return fmt.Errorf("add link %s type %s: %w", l.Name, l.Kind, err)
	}
	if l.Alias == "" {
		return nil
	}
	if err = SetLink(in, l.Name, LinkChange{Alias: l.Alias}); err != nil {
		if made, e := LinkByName(in, l.Name); e == nil && made.Kind == l.Kind {
			err = errors.Join(err, DelLink(in, made.Index))
		}
	}
	return err
}

// MacvlanData is the data of a macvlan or macvtap. A queue of zero is left to the kernel, as it is by Linux before
// 5.11.
func MacvlanData(mode, bcQueueLen uint32) func(*nl.RtAttr) {
	return func(data *nl.RtAttr) {
		data.AddRtAttr(nl.IFLA_MACVLAN_MODE, nl.Uint32Attr(mode))
		if bcQueueLen != 0 {
			data.AddRtAttr(nl.IFLA_MACVLAN_BC_QUEUE_LEN, nl.Uint32Attr(bcQueueLen))
		}
	}
}

// IPvlanData is the data of an ipvlan.
func IPvlanData(mode, flags uint16) func(*nl.RtAttr) {
	return func(data *nl.RtAttr) {
		data.AddRtAttr(nl.IFLA_IPVLAN_MODE, nl.Uint16Attr(mode))
		data.AddRtAttr(nl.IFLA_IPVLAN_FLAG, nl.Uint16Attr(flags))
	}
}

// The protocols of a VLAN's tags: the customer's, and the provider's, which goes around it (IEEE 802.1ad).
const (
	VLANTag        = unix.ETH_P_8021Q
	VLANServiceTag = unix.ETH_P_8021AD
)

// VLANData is the data of a vlan.
func VLANData(id, protocol uint16) func(*nl.RtAttr) {
	return func(data *nl.RtAttr) {
		data.AddRtAttr(nl.IFLA_VLAN_ID, nl.Uint16Attr(id))
		data.AddRtAttr(nl.IFLA_VLAN_PROTOCOL, []byte{byte(protocol >> 8), byte(protocol)})
	}
}

// VRFData is the data of a vrf.
func VRFData(table int) func(*nl.RtAttr) {
	return func(data *nl.RtAttr) {
		data.AddRtAttr(nl.IFLA_VRF_TABLE, nl.Uint32Attr(uint32(table)))
	}
}

// NoKind is nil if the kernel has links of a kind, be it in a module that it loads for this. Otherwise it says how such
// kernels are configured. Nothing is made: the link that is asked for has a name that none can have.
func NoKind(ns *kernel.NS, kind string) error {
	req := newRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(AttrText(unix.IFLA_IFNAME, "/"))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(unix.IFLA_INFO_KIND, []byte(kind))
	req.AddData(info)
	if err := Tell(ns, req); netlink.Is(err, unix.EOPNOTSUPP) {
		return noKind(kind)
	}
	return nil
}

func noKind(kind string) error {
	option := map[string]string{"vlan": "VLAN_8021Q", "vrf": "NET_VRF"}[kind]
	if option == "" {
		option = strings.ToUpper(kind)
	}
	return fmt.Errorf("this kernel has no links of type %s (its option CONFIG_%s)", kind, option)
}
