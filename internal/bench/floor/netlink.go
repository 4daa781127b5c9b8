package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"
)

// A conn is a netlink socket.
type conn struct{ fd int }

func dial(protocol int) (*conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	return &conn{fd}, nil
}

// do sends messages, each of which asks for an answer, in one call, and reads the answers. The first error is of all.
func (c *conn) do(m message) error { return c.send(m, m.count()) }

func (c *conn) send(m message, answers int) error {
	if len(m) == 0 {
		return nil
	}
	if err := unix.Sendto(c.fd, m, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	var first error
	for buf := make([]byte, 1<<16); answers > 0; {
		n, _, err := unix.Recvfrom(c.fd, buf, 0)
		if err != nil {
			return err
		}
		for b := buf[:n]; len(b) >= unix.SizeofNlMsghdr; {
			size := int(binary.NativeEndian.Uint32(b))
			if binary.NativeEndian.Uint16(b[4:]) == unix.NLMSG_ERROR {
				answers--
				if errno := -int32(binary.NativeEndian.Uint32(b[16:])); errno != 0 {
					first = errors.Join(first, unix.Errno(errno))
				}
			}
			b = b[min(len(b), (size+3)&^3):]
		}
		if first != nil {
			return first
		}
	}
	return nil
}

// transact sends messages of nf_tables as one transaction, which is answered for its last one.
func (c *conn) transact(m message) error {
	if len(m) == 0 {
		return nil
	}
	const size = 1 << 16
	if err := unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, max(size, 2*len(m))); err != nil {
		return err
	}
	begin := []byte{unix.AF_UNSPEC, 0, 0, unix.NFNL_SUBSYS_NFTABLES} // the subsystem is big-endian
	all := begun(unix.NFNL_MSG_BATCH_BEGIN, 0, begin...).end()
	all = append(append(all, m...), begun(unix.NFNL_MSG_BATCH_END, unix.NLM_F_ACK, begin...).end()...)
	return c.send(all, 1)
}

// A message is netlink messages, one after the other.
type message []byte

// begun is a message up to its attributes.
func begun(typ, flags int, body ...byte) message {
	m := make(message, unix.SizeofNlMsghdr, 256)
	binary.NativeEndian.PutUint16(m[4:], uint16(typ))
	binary.NativeEndian.PutUint16(m[6:], uint16(flags|unix.NLM_F_REQUEST))
	return append(m, body...)
}

// end writes the length of a message that is alone.
func (m message) end() message {
	binary.NativeEndian.PutUint32(m, uint32(len(m)))
	return m
}

func (m message) count() (n int) {
	for len(m) > 0 {
		n, m = n+1, m[binary.NativeEndian.Uint32(m):]
	}
	return n
}

// attr adds an attribute.
func (m message) attr(typ int, value ...byte) message {
	m = binary.NativeEndian.AppendUint16(m, uint16(4+len(value)))
	m = append(binary.NativeEndian.AppendUint16(m, uint16(typ)), value...)
	for len(m)%4 != 0 {
		m = append(m, 0)
	}
	return m
}

func (m message) str(typ int, s string) message { return m.attr(typ, append([]byte(s), 0)...) }

func (m message) u32(typ, v int) message {
	return m.attr(typ, binary.NativeEndian.AppendUint32(nil, uint32(v))...)
}

// nest adds an attribute of attributes.
func (m message) nest(typ int, inside message) message {
	return m.attr(typ|unix.NLA_F_NESTED, inside...)
}

// index is that of a link of the namespace that the thread is in.
func index(name string) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq(name)
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, ifr)
	}
	if err != nil {
		return 0, fmt.Errorf("link %s: %w", name, err)
	}
	return int(ifr.Uint32()), nil
}

const (
	create = unix.NLM_F_ACK | unix.NLM_F_CREATE | unix.NLM_F_EXCL
	up     = unix.IFF_UP
)

// linkBody is struct ifinfomsg of a link that is set up.
func linkBody() []byte {
	b := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(b[8:], up)
	binary.NativeEndian.PutUint32(b[12:], up)
	return b
}

func (j *job) hostLink() string { return "floor" + strconv.Itoa(j.number) }

// veth is the message that makes the whole pair, its container end in its namespace and the host's up in the bridge.
// The kernel cannot set up the first end before it knows the other.
func (j *job) veth(master int) message {
	peer := append(make(message, unix.SizeofIfInfomsg),
		message(nil).str(unix.IFLA_IFNAME, j.ifName).u32(unix.IFLA_NET_NS_FD, j.netns).queues()...)
	const vethInfoPeer = 1
	info := message(nil).str(unix.IFLA_INFO_KIND, "veth").
		nest(unix.IFLA_INFO_DATA, message(nil).attr(vethInfoPeer|unix.NLA_F_NESTED, peer...))
	return begun(unix.RTM_NEWLINK, create, linkBody()...).str(unix.IFLA_IFNAME, j.hostLink()).
		u32(unix.IFLA_GROUP, group).u32(unix.IFLA_MASTER, master).queues().nest(unix.IFLA_LINKINFO, info).end()
}

// queues is one of each, which the kernel makes fastest.
func (m message) queues() message {
	return m.u32(unix.IFLA_NUM_TX_QUEUES, 1).u32(unix.IFLA_NUM_RX_QUEUES, 1)
}

func (j *job) unlink() message {
	return begun(unix.RTM_DELLINK, unix.NLM_F_ACK, make([]byte, unix.SizeofIfInfomsg)...).
		str(unix.IFLA_IFNAME, j.hostLink()).end()
}

func ofGroup(group int) message {
	return begun(unix.RTM_DELLINK, unix.NLM_F_ACK, make([]byte, unix.SizeofIfInfomsg)...).
		u32(unix.IFLA_GROUP, group).end()
}

// setUp is the message that sets a link up.
func setUp(link int) message {
	body := linkBody()
	binary.NativeEndian.PutUint32(body[4:], uint32(link))
	return begun(unix.RTM_NEWLINK, unix.NLM_F_ACK, body...).end()
}

func (j *job) addr(link int) message {
	body := binary.NativeEndian.AppendUint32([]byte{unix.AF_INET, 16, 0, unix.RT_SCOPE_UNIVERSE}, uint32(link))
	return begun(unix.RTM_NEWADDR, create, body...).attr(unix.IFA_LOCAL, j.address[:]...).end()
}

func (j *job) route(link int) message {
	body := []byte{unix.AF_INET, 0, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_STATIC,
		unix.RT_SCOPE_UNIVERSE, unix.RTN_UNICAST, 0, 0, 0, 0}
	flags := unix.NLM_F_ACK | unix.NLM_F_CREATE | unix.NLM_F_APPEND // the namespace may have one by another interface
	return begun(unix.RTM_NEWROUTE, flags, body...).attr(unix.RTA_GATEWAY, 10, 40, 255, 254).
		u32(unix.RTA_OIF, link).end()
}

// elements changes those of the container in one transaction, and gives them milliseconds from now on, or no time.
func (j *job) elements(flags, milliseconds int) error {
	return j.filter.transact(j.setElements(flags, milliseconds))
}

func (j *job) setElements(flags, milliseconds int) (m message) {
	if j.parts["ipMasq"] {
		m = append(m, element("masq", flags, milliseconds, j.address[:], nil)...)
	}
	if j.parts["firewall"] {
		m = append(m, element("allow", flags, milliseconds, j.address[:], nil)...)
	}
	if j.parts["portmap"] {
		port := uint16(20000 + 2*j.number)
		for i, p := range []struct {
			protocol byte
			to       uint16
		}{{unix.IPPROTO_TCP, 80}, {unix.IPPROTO_UDP, 53}} {
			key := append([]byte{p.protocol, 0, 0, 0}, byte((port+uint16(i))>>8), byte(port+uint16(i)), 0, 0)
			data := append(j.address[:], byte(p.to>>8), byte(p.to), 0, 0)
			m = append(m, element("ports", flags, milliseconds, key, data)...)
		}
	}
	return m
}

// element is the message that makes or changes one.
func element(set string, flags, milliseconds int, key, data []byte) message {
	value := func(b []byte) message { return message(nil).attr(unix.NFTA_DATA_VALUE, b...) }
	e := message(nil).nest(unix.NFTA_SET_ELEM_KEY, value(key))
	if data != nil {
		e = e.nest(unix.NFTA_SET_ELEM_DATA, value(data))
	}
	if milliseconds > 0 {
		e = e.attr(unix.NFTA_SET_ELEM_TIMEOUT, binary.BigEndian.AppendUint64(nil, uint64(milliseconds))...)
	}
	typ := unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWSETELEM
	return begun(typ, flags, unix.NFPROTO_INET, 0, 0, 0).str(unix.NFTA_SET_ELEM_LIST_TABLE, "floor").
		str(unix.NFTA_SET_ELEM_LIST_SET, set).
		nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, message(nil).nest(unix.NFTA_LIST_ELEM, e)).end()
}
