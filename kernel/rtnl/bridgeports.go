package rtnl

import (
	"bytes"
	"net"
	"os"
	"runtime"
	"slices"
	"unsafe"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	brctlGetPortList = 7    // BRCTL_GET_PORT_LIST of linux/if_bridge.h
	bridgePorts      = 1024 // BR_MAX_PORTS
)

// PortIndexes returns the indexes of a bridge's ports. It takes microseconds, where a dump of a thousand links takes
// milliseconds.
func PortIndexes(ns *kernel.NS, bridge string) (indexes []int32, err error) {
	fd := -1
	err = ns.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		return os.NewSyscallError("socket", err)
	})
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var list [bridgePorts]int32
	args := struct { // four times unsigned long
		command uintptr
		list    unsafe.Pointer
		n, _    uintptr
	}{command: brctlGetPortList, list: unsafe.Pointer(&list), n: bridgePorts}
	req := struct { // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&args)}
	copy(req.name[:unix.IFNAMSIZ-1], bridge)
	_, _, no := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCDEVPRIVATE, uintptr(unsafe.Pointer(&req)))
	if no != 0 {
		return nil, os.NewSyscallError("ioctl", no)
	}
	runtime.KeepAlive(&args)
	return slices.DeleteFunc(list[:], func(index int32) bool { return index == 0 }), nil
}

// PortOf returns the index of the port behind which a bridge has learned a MAC address. It returns 0 if the bridge
// does not know the address.
func PortOf(ns *kernel.NS, bridge int, mac net.HardwareAddr) (port int, err error) {
	msgs, err := Dump(ns, unix.RTM_NEWNEIGH, func() *nl.NetlinkRequest {
		req := newRequest(unix.RTM_GETNEIGH, unix.NLM_F_DUMP)
		head := make([]byte, sizeofNdMsg)
		head[0] = unix.AF_BRIDGE
		req.AddData(rawData(head))
		req.AddData(attrU32(unix.NDA_MASTER, uint32(bridge)))
		return req
	})
	for _, b := range msgs {
		m := Message{unix.RTM_NEWNEIGH, b}
		if n := m.Neighbour(); bytes.Equal(n.MAC, mac) && n.Link != bridge {
			port = n.Link
		}
	}
	return port, err
}
