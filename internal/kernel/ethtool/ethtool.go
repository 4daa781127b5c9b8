// Package ethtool reads and sets features of a link that rtnetlink does not show: checksum offload.
package ethtool

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"golang.org/x/sys/unix"
)

// Commands of ethtool's ioctl (linux/ethtool.h).
const (
	ethtoolGTXCSUM = 0x16
	ethtoolSTXCSUM = 0x17
)

// TxChecksum reports whether a link leaves the checksums of outgoing packets to the receiver (ethtool -k:
// tx-checksumming). A veth does this for its peer.
func TxChecksum(ns *kernel.NS, link string) (on bool, err error) {
	v, err := ethtool(ns, link, ethtoolGTXCSUM, 0)
	return v != 0, err
}

// SetTxChecksum turns checksum offload for outgoing packets on or off. With on false, the kernel computes checksums
// itself.
func SetTxChecksum(ns *kernel.NS, link string, on bool) error {
	v := uint32(0)
	if on {
		v = 1
	}
	_, err := ethtool(ns, link, ethtoolSTXCSUM, v)
	return err
}

// ethtool makes an ioctl of a struct ethtool_value.
func ethtool(ns *kernel.NS, link string, command, value uint32) (uint32, error) {
	data := &struct{ command, value uint32 }{command, value}
	req := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(data)}
	if len(link) >= len(req.name) {
		return 0, fmt.Errorf("link %s: %w", link, rtnl.ErrNoLink)
	}
	copy(req.name[:], link)
	err := ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		_, _, no := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req)))
		runtime.KeepAlive(data)
		switch no {
		case 0:
			return nil
		case unix.ENODEV:
			return rtnl.ErrNoLink
		}
		return no
	})
	if err != nil {
		return 0, fmt.Errorf("ethtool of link %s: %w", link, err)
	}
	return data.value, nil
}
