package packet

import (
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"golang.org/x/sys/unix"
)

// DialUDP opens a UDP socket that sends from an address and port of the namespace through one link. The kernel
// resolves the neighbour's address.
func DialUDP(ns *kernel.NS, link string, from, to netip.AddrPort) (net.Conn, error) {
	fd, err := openIn(ns, int(rtnl.Family(from.Addr())), unix.SOCK_DGRAM, 0)
	if err != nil {
		return nil, err
	}
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if err == nil {
		err = unix.BindToDevice(fd, link)
	}
	if err == nil {
		err = unix.Bind(fd, sockaddr(from))
	}
	if err == nil {
		err = unix.Connect(fd, sockaddr(to))
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("UDP from %v to %v: %w", from, to, err)
	}
	f := os.NewFile(uintptr(fd), "udp")
	defer f.Close()
	return net.FileConn(f)
}
