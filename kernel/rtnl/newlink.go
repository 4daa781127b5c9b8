package rtnl

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// ErrLinkExists means that a link of that name existed before. The link was not changed.
var ErrLinkExists = errors.New("an interface of that name exists already")

// NameTaken returns an ErrLinkExists for a link name in the container.
func NameTaken(name string) error {
	return spec.AsError(fmt.Errorf("in the container: %s: %w", name, ErrLinkExists), 0).
		WithHint("Choose another name with -i NAME (CNI_IFNAME), or delete the interface that has it in the container.")
}

// A NewLink describes a link for AddLink. The kernel chooses a value for each zero field.
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
	Data   func(data *netlink.Buffer)
}

// AddLink creates a link in one message: in its namespace, under its name, with its MAC, MTU and group. So no process
// sees a link that is half made. The error is ErrLinkExists if a link of that name exists.
//
// The kernel ignores the alias in that message, so AddLink sends a second one. If that fails, AddLink deletes the
// link.
func AddLink(ns *kernel.NS, l NewLink) error {
	in := l.NS
	if in == nil {
		in = ns
	}
	c := LinkChange{Up: l.Up, MAC: l.MAC, MTU: l.MTU, Group: &l.Group}
	if in != ns {
		c.To = in
	}
	req := c.request(unix.IfInfomsg{Index: int32(l.Index)}, l.Name)
	req.Flags |= unix.NLM_F_CREATE | unix.NLM_F_EXCL
	req.Opt32(unix.IFLA_LINK, uint32(l.Parent))
	req.Opt32(unix.IFLA_NUM_TX_QUEUES, uint32(l.Queues))
	req.Opt32(unix.IFLA_NUM_RX_QUEUES, uint32(l.Queues))
	linkInfo(req, l.Kind, l.Data)
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

// MacvlanData returns the data of a macvlan or macvtap. With a bcQueueLen of 0, the kernel chooses the length of the
// broadcast queue, as Linux before 5.11 always does.
func MacvlanData(mode, bcQueueLen uint32) func(*netlink.Buffer) {
	return func(data *netlink.Buffer) {
		data.Host32(unix.IFLA_MACVLAN_MODE, mode)
		data.Opt32(unix.IFLA_MACVLAN_BC_QUEUE_LEN, bcQueueLen)
	}
}

// IPvlanData returns the data of an ipvlan.
func IPvlanData(mode, flags uint16) func(*netlink.Buffer) {
	return func(data *netlink.Buffer) {
		data.Host16(unix.IFLA_IPVLAN_MODE, mode)
		data.Host16(unix.IFLA_IPVLAN_FLAGS, flags)
	}
}

// The protocols of VLAN tags: the customer's tag (802.1Q), and the provider's outer tag (IEEE 802.1ad).
const (
	VLANTag        = unix.ETH_P_8021Q
	VLANServiceTag = unix.ETH_P_8021AD
)

// VLANData returns the data of a vlan.
func VLANData(id, protocol uint16) func(*netlink.Buffer) {
	return func(data *netlink.Buffer) {
		data.Host16(unix.IFLA_VLAN_ID, id)
		data.Attr(unix.IFLA_VLAN_PROTOCOL, byte(protocol>>8), byte(protocol))
	}
}

// VRFData returns the data of a vrf.
func VRFData(table int) func(*netlink.Buffer) {
	return func(data *netlink.Buffer) {
		data.Host32(unix.IFLA_VRF_TABLE, uint32(table))
	}
}

// NoKind returns nil if the kernel supports links of a kind, possibly after it has loaded a module. Otherwise the
// error names the kernel option that is missing. NoKind asks for a link with a name that the kernel refuses, so it
// makes none.
func NoKind(ns *kernel.NS, kind string) error {
	req := newRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK, unix.IfInfomsg{})
	req.Str(unix.IFLA_IFNAME, "/")
	linkInfo(req, kind, nil)
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
