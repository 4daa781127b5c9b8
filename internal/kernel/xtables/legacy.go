package xtables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"unsafe"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// LegacyTables returns the names of the tables that ip_tables has in the namespace. It reads them without creating
// any; most other requests make the kernel create the table.
func LegacyTables(ns *kernel.NS, v6 bool) (names []string, err error) {
	file := "/proc/thread-self/net/ip_tables_names"
	if v6 {
		file = "/proc/thread-self/net/ip6_tables_names"
	}
	return kernel.Once(ns, file, func() (names []string, err error) {
		err = ns.Do(func() (err error) {
			names, err = tableNames(file)
			return err
		})
		return names, err
	})
}

// tableNames reads the tables of the namespace that the thread is in.
func tableNames(file string) ([]string, error) {
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	// ip_tables is not loaded, or this kernel does not have it. In a user namespace the file is the
	// first root's alone, although tables can be made there: they are taken for none.
	if netlink.Is(err, unix.ENOENT, unix.EACCES, unix.EPERM) {
		return nil, nil
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: file, Err: err}
	}
	defer unix.Close(fd)
	var buf [1024]byte // there are five tables
	n, err := unix.Read(fd, buf[:])
	return strings.Fields(string(buf[:max(n, 0)])), err
}

// Numbers of ip_tables. The first user chain's entry is found by its target, whose name is ERROR.
const (
	getInfo    = 64
	getEntries = 65
)

// A LegacyInfo says where the chains of an ip_tables table begin among its entries, as struct ipt_getinfo does. Hooks
// and Underflow are the offsets of a base chain's first entry and of its policy, by the number of the hook
// (unix.NF_INET_FORWARD). Only those of ValidHooks count.
type LegacyInfo struct {
	name             [32]byte
	ValidHooks       uint32
	Hooks, Underflow [5]uint32
	entries, size    uint32
}

type legacyEntries struct {
	name  [32]byte
	size  uint32
	table [0]uint64
}

// legacyChains are the chains that programs made in a table of ip_tables. Reading them executes nothing.
func legacyChains(ns *kernel.NS, v6 bool, table string) (chains []string, exists bool, err error) {
	_, b, err := LegacyEntries(ns, v6, table)
	if b == nil || err != nil {
		return nil, false, err
	}
	return legacyChainNames(b, EntryOffsets(v6)), true, nil
}

// EntryOffsets returns the offset within an entry at which it stores the offsets of its target and of the next entry.
func EntryOffsets(v6 bool) int {
	if v6 {
		return 140
	}
	return 88
}

// LegacyEntries reads a table of ip_tables: a sequence of struct ipt_entry or ip6t_entry. It returns nil if the table
// does not exist.
func LegacyEntries(ns *kernel.NS, v6 bool, table string) (info LegacyInfo, b []byte, err error) {
	names, err := LegacyTables(ns, v6)
	if err != nil || !slices.Contains(names, table) {
		return info, nil, err
	}
	family, level := unix.AF_INET, unix.SOL_IP
	if v6 {
		family, level = unix.AF_INET6, unix.SOL_IPV6
	}
	var fd int
	if err := ns.Do(func() (err error) {
		fd, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return os.NewSyscallError("socket", err)
	}); err != nil {
		return info, nil, err
	}
	defer unix.Close(fd)
	get := func(opt int, p unsafe.Pointer, size uint32) error {
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(opt), uintptr(p),
			uintptr(unsafe.Pointer(&size)), 0)
		if errno != 0 {
			return errno
		}
		return nil
	}
	for range 8 { // the table may change between the two questions
		info = LegacyInfo{}
		copy(info.name[:31], table)
		if err := get(getInfo, unsafe.Pointer(&info), uint32(unsafe.Sizeof(info))); err != nil {
			return info, nil, fmt.Errorf("read table %s of ip_tables: %w", table, err)
		}
		head := int(unsafe.Offsetof(legacyEntries{}.table))
		buf := make([]uint64, (head+int(info.size)+7)/8)
		h := (*legacyEntries)(unsafe.Pointer(&buf[0]))
		h.name, h.size = info.name, info.size
		err := get(getEntries, unsafe.Pointer(&buf[0]), uint32(head)+info.size)
		if errors.Is(err, unix.EAGAIN) {
			continue
		}
		if err != nil {
			return info, nil, fmt.Errorf("read table %s of ip_tables: %w", table, err)
		}
		return info, unsafe.Slice((*byte)(unsafe.Pointer(&buf[0])), head+int(info.size))[head:], nil
	}
	return info, nil, fmt.Errorf("read table %s of ip_tables: %w", table, unix.EAGAIN)
}

// legacyChainNames walks the entries: each has the offsets of its target and of the next entry.
func legacyChainNames(b []byte, offsets int) (chains []string) {
	for len(b) >= offsets+4 {
		target, next := int(binary.NativeEndian.Uint16(b[offsets:])), int(binary.NativeEndian.Uint16(b[offsets+2:]))
		if next <= 0 || next > len(b) || target > next {
			return chains
		}
		// xt_entry_target is size, name of 29 bytes, revision; an error target has the chain's name behind that.
		if t := b[target:next]; len(t) >= 62 && netlink.Text(t[2:31]) == "ERROR" {
			if name := netlink.Text(t[32:62]); name != "ERROR" { // which is the end
				chains = append(chains, name)
			}
		}
		b = b[next:]
	}
	return chains
}
