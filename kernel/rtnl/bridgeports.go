package rtnl

import (
	"os"
	"runtime"
	"slices"
	"unsafe"

	"github.com/fairlead-cni/fairlead/kernel"
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
