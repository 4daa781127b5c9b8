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

	"github.com/fairlead-cni/fairlead/internal/plainfile"
	"golang.org/x/sys/unix"
)

// A History records which addresses attachments have held on a bridge since the bridge was made, whatever allocator
// assigned them. It lasts until the next boot. It continues when the bridge is made anew, because containers may have
// kept their neighbour tables.
//
// A History is a directory with files of 65536 addresses each. Each address has one byte: 0 never held, 1 held once,
// 2 held more than once. The file "made" says when the bridge was made; without it, nothing is certain. The file
// "ledger" holds the number of the only ledger of leases whose addresses can be proven unused. The file "ports" holds
// the indexes of the ports that were recognized as ports of attachments.
type History struct{ dir string }

// History returns the history of a bridge. It is stored beside the records, because it belongs to no attachment.
func (m Store) History(bridge string) History {
	return History{filepath.Join(filepath.Dir(m.Dir), "history", bridge)}
}

// opening is how long after its bridge was made a history is open to a ledger whose number is younger: the call that
// makes the bridge opens the ledger next.
const opening = 10 * time.Second

// uptime is a clock that cannot be set and that no sleep stops, in nanoseconds.
func uptime() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return ts.Nano()
}

// Begin starts a history before the caller makes the bridge. An existing history continues.
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

// Blur records that addresses may be in use that the history does not know. First then proves nothing until the next
// boot.
func (h History) Blur() error {
	if err := os.MkdirAll(h.dir, 0o700); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(h.dir, "made")); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Hold records that an attachment is about to have the addresses. Without a history of the bridge, Hold assumes that
// others have held addresses before.
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

// First reports whether it is certain that no other owner has held any of the addresses. Call Hold for them before.
// Ledger is the number of the ledger that allocated them; the number changes whenever another program may have
// changed the leases. A ledger of 0 means none.
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

// Ports returns the port indexes of the last SetPorts, in order.
func (h History) Ports() (indexes []int32) {
	b, err := plainfile.Read(filepath.Join(h.dir, "ports"), 1<<20)
	for ; err == nil && len(b) >= 4; b = b[4:] {
		indexes = append(indexes, int32(binary.NativeEndian.Uint32(b)))
	}
	return indexes
}

// SetPorts stores the indexes of the bridge's ports that belong to attachments, in order. Two concurrent calls may
// lose indexes of either. That is harmless: ports that are not stored are looked at again.
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
