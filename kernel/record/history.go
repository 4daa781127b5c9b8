package record

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// A History is which addresses attachments have had on a bridge since that was made, whoever allocated them. It ends
// with the boot, and it goes on when the bridge is made anew, for containers may have kept their neighbour tables.
//
// It is a directory with a byte for each address, in a file for each 65536 of them: 0 never held, 1 held once, 2 more
// often. The file made says when the bridge was made; without it nothing is known for certain. The file ledger has the
// number of the one ledger of leases whose addresses can be proven never to have been held, and ports the indexes of
// ports that were seen to be ours.
type History struct{ dir string }

// History is that of a bridge. It is beside the records, for it is no attachment's.
func (m Store) History(bridge string) History {
	return History{filepath.Join(filepath.Dir(m.Dir), "history", bridge)}
}

// opening is how long after its bridge was made a history is open to a ledger whose number is younger: the call that
// makes the bridge opens the ledger next.
const opening = 10 * time.Second

// uptime is a clock that nobody sets and no sleep stops, in nanoseconds.
func uptime() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return ts.Nano()
}

// Begin is for who is about to make the bridge. A history that there is goes on.
func (h History) Begin() error {
	if err := os.MkdirAll(filepath.Dir(h.dir), 0o700); err != nil {
		return err
	}
	switch err := unix.Mkdir(h.dir, 0o700); err {
	case nil:
		return h.note("made", uptime())
	case unix.EEXIST:
		return nil
	default:
		return &fs.PathError{Op: "mkdir", Path: h.dir, Err: err}
	}
}

// Blur says that somebody may hold addresses that are not written down. Nothing can be proven until the next boot.
func (h History) Blur() error {
	if err := os.MkdirAll(h.dir, 0o700); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(h.dir, "made")); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Hold writes down that an attachment is about to have an address. On a bridge without a history there may have been
// others.
func (h History) Hold(addrs ...netip.Addr) error {
	if err := os.MkdirAll(h.dir, 0o700); err != nil {
		return err
	}
	for _, a := range addrs {
		name, at := h.place(a)
		fd, err := unix.Open(name, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return &fs.PathError{Op: "open", Path: name, Err: err}
		}
		b := []byte{0}
		_, err = unix.Pread(fd, b, at)
		if b[0] < 2 && err == nil {
			b[0]++
			_, err = unix.Pwrite(fd, b, at)
		}
		unix.Close(fd)
		if err != nil {
			return &fs.PathError{Op: "write", Path: name, Err: err}
		}
	}
	return nil
}

// First reports whether it is proven that each address, which Hold was called for, has been held by nobody else. Ledger
// is the number of the ledger that they are of: another one each time that anybody else may have changed the leases; 0:
// none.
func (h History) First(ledger int64, addrs ...netip.Addr) bool {
	made, ok := h.recall("made")
	if !ok || ledger == 0 {
		return false
	}
	if ledger <= made+int64(opening) {
		_ = h.note("ledger", ledger)
	}
	if of, ok := h.recall("ledger"); !ok || of != ledger {
		return false
	}
	for _, a := range addrs {
		b := []byte{0}
		name, at := h.place(a)
		fd, err := unix.Open(name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return false
		}
		_, err = unix.Pread(fd, b, at)
		unix.Close(fd)
		if err != nil || b[0] > 1 {
			return false
		}
	}
	return len(addrs) > 0
}

// Ports are the ports that SetPorts was told last, in order.
func (h History) Ports() (indexes []int32) {
	b, err := spec.ReadPlain(filepath.Join(h.dir, "ports"), 1<<20)
	for ; err == nil && len(b) >= 4; b = b[4:] {
		indexes = append(indexes, int32(binary.NativeEndian.Uint32(b)))
	}
	return indexes
}

// SetPorts remembers which ports are ours, in order. Of two calls at a time one is forgotten, or a part of both: what
// is not remembered is looked at again.
func (h History) SetPorts(indexes []int32) {
	b := make([]byte, 0, 4*len(indexes))
	for _, index := range indexes {
		b = binary.NativeEndian.AppendUint32(b, uint32(index))
	}
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK // a pipe would hang
	fd, err := unix.Open(filepath.Join(h.dir, "ports"), flags, 0o600)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	_, _ = unix.Pwrite(fd, b, 0)
	_ = unix.Ftruncate(fd, int64(len(b)))
}

// place is the file that has an address's byte, and where in it.
func (h History) place(a netip.Addr) (file string, at int64) {
	b := a.As16()
	at = int64(b[14])<<8 | int64(b[15])
	b[14], b[15] = 0, 0
	return filepath.Join(h.dir, strings.ReplaceAll(netip.AddrFrom16(b).Unmap().String(), ":", "_")), at
}

// note writes a number under a name that has none.
func (h History) note(name string, n int64) error {
	path := filepath.Join(h.dir, name)
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &fs.PathError{Op: "create", Path: path, Err: err}
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, fmt.Appendf(nil, "%016x\n", n))
	return err
}

// recall is the number under a name. One that is being written is none.
func (h History) recall(name string) (n int64, ok bool) {
	fd, err := unix.Open(filepath.Join(h.dir, name), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, false
	}
	defer unix.Close(fd)
	var b [32]byte
	got, _ := unix.Read(fd, b[:])
	if got != 17 {
		return 0, false
	}
	n, err = strconv.ParseInt(string(b[:16]), 16, 64)
	return n, err == nil
}
