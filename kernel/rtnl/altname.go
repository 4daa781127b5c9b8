package rtnl

import (
	"errors"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// AddAltName adds an alternative name of up to 127 bytes to a link (Linux 5.5).
func AddAltName(ns *kernel.NS, name, alt string) error {
	const how = unix.NLM_F_CREATE | unix.NLM_F_APPEND | unix.NLM_F_EXCL
	return netlink.About(altName(ns, unix.RTM_NEWLINKPROP, how, alt, 0, name), "altname %s of link %s", alt, name)
}

// LinkByAltName returns the link with an alternative name. The error is ErrNoLink if there is none, also on a kernel
// without alternative names.
func LinkByAltName(ns *kernel.NS, alt string) (*Link, error) {
	l, err := getLink(ns, alt, 0, func(b *netlink.Buffer) { b.Str(unix.IFLA_ALT_IFNAME, alt) })
	if netlink.Is(err, unix.EINVAL, unix.EOPNOTSUPP) {
		return nil, NoLink{alt}
	}
	return l, err
}

// DelAltNames removes alternative names from the link with that index. It continues after a name that does not exist.
func DelAltNames(ns *kernel.NS, index int, names ...string) error {
	var errs []error
	for _, alt := range names {
		err := altName(ns, unix.RTM_DELLINKPROP, 0, alt, index, "")
		errs = append(errs, netlink.About(err, "altname %s of link #%d", alt, index))
	}
	return errors.Join(errs...)
}

// altName is about the link of an index, or else of a name.
func altName(ns *kernel.NS, proto, flags int, alt string, index int, name string) error {
	req := newRequest(proto, flags|unix.NLM_F_ACK, unix.IfInfomsg{Index: int32(index)})
	req.OptStr(unix.IFLA_IFNAME, name)
	req.Nest(unix.IFLA_PROP_LIST, func() { req.Str(unix.IFLA_ALT_IFNAME, alt) })
	return Tell(ns, req)
}

// AltNames returns the link's alternative names.
func (l *Link) AltNames() (names []string) {
	netlink.EachAttr(l.altNames, func(kind uint16, v []byte) {
		if kind == unix.IFLA_ALT_IFNAME {
			names = append(names, netlink.Text(v))
		}
	})
	return names
}
