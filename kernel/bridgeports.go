package kernel

import (
	"os"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	brctlGetPortList = 7    // BRCTL_GET_PORT_LIST of linux/if_bridge.h
	bridgePorts      = 1024 // BR_MAX_PORTS
)

// PortNames are the names of a bridge's ports. They are read by number: a dump of a thousand links takes the kernel milliseconds, and
// this takes a fifth of one.
func (ns *NS) PortNames(bridge string) (names []string, err error) {
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
	if _, _, no := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCDEVPRIVATE, uintptr(unsafe.Pointer(&req))); no != 0 {
		return nil, os.NewSyscallError("ioctl", no)
	}
	runtime.KeepAlive(&args)
	for _, index := range list {
		if index == 0 {
			continue
		}
		port := struct { // struct ifreq
			name  [unix.IFNAMSIZ]byte
			index int32
			_     [20]byte
		}{index: index}
		if _, _, no := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCGIFNAME, uintptr(unsafe.Pointer(&port))); no == unix.ENODEV {
			continue // gone by now
		} else if no != 0 {
			return nil, os.NewSyscallError("ioctl", no)
		}
		names = append(names, text(port.name[:]))
	}
	return names, nil
}

// IsLinkName reports whether a name is one that LinkName makes with a prefix.
func IsLinkName(prefix, name string) bool {
	rest, ok := strings.CutPrefix(name, prefix)
	return ok && len(rest) == 11 && strings.Trim(rest, "abcdefghijklmnopqrstuvwxyz234567") == ""
}
