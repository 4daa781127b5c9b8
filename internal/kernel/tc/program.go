package tc

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"unsafe"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// An Attachment is where BPF programs see the packets of a link, without a qdisc (enum bpf_attach_type).
type Attachment uint32

// The attachments of tcx (Linux 6.6), which any link has, and those of netkit (Linux 6.7). Programs of both ends of a
// netkit pair are attached to its primary end.
const (
	TCXIngress    Attachment = unix.BPF_TCX_INGRESS
	TCXEgress     Attachment = unix.BPF_TCX_EGRESS
	NetkitPrimary Attachment = 54 // for packets that leave by the primary end
	NetkitPeer    Attachment = 55 // for packets that come in by it
)

// mostPrograms is how many an attachment can have (BPF_MPROG_MAX).
const mostPrograms = 64

// progQuery is the struct query of union bpf_attr.
type progQuery struct {
	link, attachment, queryFlags, attachFlags uint32
	ids                                       uint64
	count, _                                  uint32
	progAttachFlags, linkIDs, linkAttachFlags uint64
	revision                                  uint64
}

// Programs returns the IDs of the BPF programs at an attachment of a link, in the order in which they run. It returns
// none if the kernel is too old for such programs, or if the caller is in a user namespace, whose root cannot attach
// them.
func Programs(ns *kernel.NS, link int, at Attachment) (ids []uint32, err error) {
	all := make([]uint32, mostPrograms)
	q := &progQuery{link: uint32(link), attachment: uint32(at), ids: uint64(uintptr(unsafe.Pointer(&all[0]))),
		count: mostPrograms}
	err = ns.Do(func() error {
		_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_QUERY, uintptr(unsafe.Pointer(q)), unsafe.Sizeof(*q))
		if errno != 0 {
			return errno
		}
		return nil
	})
	switch {
	case err == nil:
		return all[:q.count], nil
	case netlink.Is(err, unix.EINVAL, unix.ENOSYS, unix.ENODEV), netlink.Is(err, unix.EPERM) && inUserNamespace():
		return nil, nil
	}
	return nil, fmt.Errorf("BPF programs of link #%d: %w", link, err)
}

// inUserNamespace reports whether this process is in a user namespace other than the first one, which maps every user.
func inUserNamespace() bool {
	users, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return false
	}
	const every = "4294967295"
	return !slices.Equal(strings.Fields(string(users)), []string{"0", "0", every})
}
