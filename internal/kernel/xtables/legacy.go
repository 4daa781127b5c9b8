package xtables

import (
	"bytes"
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
	return legacyChainNames(b, v6), true, nil
}

// An Entry is a struct ipt_entry or ip6t_entry. It begins with what it asks of addresses and links; then come its
// matches and its target.
type Entry struct {
	At     int // in the table
	Bytes  []byte
	Target int // where the target begins
	v6     bool
}

// layout returns the size of an entry's questions about addresses and links, the offset of the offsets of its target
// and of the next entry, and where the matches begin.
func layout(v6 bool) (questions, offsets, matches int) {
	if v6 {
		return 136, 140, 168
	}
	return 84, 88, 112
}

// EachEntry calls each with the entries that LegacyEntries has read.
func EachEntry(b []byte, v6 bool, each func(Entry)) error {
	_, offsets, matches := layout(v6)
	for at := 0; at+offsets+4 <= len(b); {
		target, size := int(netlink.U16(b[at+offsets:])), int(netlink.U16(b[at+offsets+2:]))
		if target < matches || size < target+32 || at+size > len(b) {
			return fmt.Errorf("ip_tables entry at %d is malformed", at)
		}
		each(Entry{at, b[at : at+size], target, v6})
		at += size
	}
	return nil
}

// TargetName returns the name of the target; the standard one has none.
func (e Entry) TargetName() string { return netlink.Text(e.Bytes[e.Target+2 : e.Target+31]) }

// Verdict returns that of a standard target: an offset, or what the kernel returns less one, negative.
func (e Entry) Verdict() int {
	if len(e.Bytes) < e.Target+36 {
		return -1
	}
	return int(int32(netlink.U32(e.Bytes[e.Target+32:])))
}

// Chain returns the name of the chain that begins behind the entry. Most entries have none; the last one has "ERROR".
func (e Entry) Chain() string {
	if e.TargetName() != "ERROR" || len(e.Bytes) < e.Target+62 {
		return ""
	}
	return netlink.Text(e.Bytes[e.Target+32 : e.Target+62])
}

// EachMatch calls each with the name, the revision and the structure of each match.
func (e Entry) EachMatch(each func(name string, revision byte, info []byte)) {
	_, _, at := layout(e.v6)
	for at+32 <= e.Target {
		size := int(netlink.U16(e.Bytes[at:]))
		if size < 32 || at+size > e.Target {
			return
		}
		each(netlink.Text(e.Bytes[at+2:at+31]), e.Bytes[at+31], e.Bytes[at+32:at+size])
		at += size
	}
}

// Asks reports whether the entry asks for anything.
func (e Entry) Asks() bool {
	questions, _, matches := layout(e.v6)
	return e.Target > matches || len(bytes.Trim(e.Bytes[:questions], "\x00")) > 0
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
	for range 8 { // the table may change between the two questions
		if info, b, err = readEntries(fd, level, table); !errors.Is(err, unix.EAGAIN) {
			break
		}
	}
	return info, b, netlink.About(err, "read table %s of ip_tables", table)
}

// readEntries asks for the size of a table and for its entries. The error is EAGAIN if it has changed in between.
func readEntries(fd, level int, table string) (info LegacyInfo, b []byte, err error) {
	get := func(opt int, p unsafe.Pointer, size uint32) error {
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(opt), uintptr(p),
			uintptr(unsafe.Pointer(&size)), 0)
		if errno != 0 {
			return errno
		}
		return nil
	}
	copy(info.name[:31], table)
	if err := get(getInfo, unsafe.Pointer(&info), uint32(unsafe.Sizeof(info))); err != nil {
		return info, nil, err
	}
	head := int(unsafe.Offsetof(legacyEntries{}.table))
	buf := make([]uint64, (head+int(info.size)+7)/8)
	h := (*legacyEntries)(unsafe.Pointer(&buf[0]))
	h.name, h.size = info.name, info.size
	if err := get(getEntries, unsafe.Pointer(&buf[0]), uint32(head)+info.size); err != nil {
		return info, nil, err
	}
	return info, unsafe.Slice((*byte)(unsafe.Pointer(&buf[0])), head+int(info.size))[head:], nil
}

func legacyChainNames(b []byte, v6 bool) (chains []string) {
	EachEntry(b, v6, func(e Entry) {
		if name := e.Chain(); name != "" && name != "ERROR" {
			chains = append(chains, name)
		}
	})
	return chains
}
