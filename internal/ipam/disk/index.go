package disk

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// indexDir holds the indexes and what is being written. No network has this name, for names begin with a
// letter or a digit; and it is on the leases' own file system, which link(2) needs.
const indexDir = ".fairlead-index"

func indexPath(dir string) string {
	return filepath.Join(filepath.Dir(dir), indexDir, filepath.Base(dir))
}

// An index is a directory of hints for one network. A scan of the lease files makes it anew.
//
//	oHASH           a lease of an owner, an entry as text; its further leases are oHASH.1, oHASH.2 …
//	kHASH           likewise an address that a sticky key had last
//	words/10.1.0.0  what became of each of 65536 addresses, see words.go
//	state           when another program may have changed it last, the boot, a digest of what the directory of leases
//	                was like, and when
//	                to prune records
//
// Entries are symbolic links that are not followed: one is made or read in one step, whole or not at all, and
// needs no block.
//
// A hint is written before what it speaks of is there, and removed after that is gone. So a call that is
// killed leaves hints too many and none too few, and a hint is only taken with the lease file.
type index struct {
	fd     int    // of the directory; -1: there is none
	since  int64  // changes whenever another program may have changed the directory of leases
	boot   uint32 // the boot in which that was scanned; 0: never
	digest string // of that directory, see directory.digest
	prune  int    // how many more records are written before those are looked for whose time is over

	blocks map[netip.Addr]int // the open files of words
	buf    []byte             // … what was read of one

	// What could not be written, and the first reason. The state is not written then, so that the next call scans.
	err     error
	entries map[string][]string
	words   map[netip.Addr]uint32
}

// openIndex opens the index at path, which may be outdated.
func openIndex(path string) *index {
	x := &index{fd: -1, prune: fewRecords}
	x.blocks, x.entries, x.words = map[netip.Addr]int{}, map[string][]string{}, map[netip.Addr]uint32{}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return x
	}
	x.fd = fd
	var b [128]byte
	n := 0
	fd, err = unix.Openat(x.fd, "state", unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err == nil {
		n, _ = unix.Read(fd, b[:])
		unix.Close(fd)
	}
	f := strings.Fields(string(b[:max(n, 0)]))
	if len(f) != 4 {
		return x
	}
	since, serr := strconv.ParseInt(f[0], 16, 64)
	boot, err := strconv.ParseUint(f[1], 16, 32)
	prune, perr := strconv.Atoi(f[3])
	if err == nil && perr == nil && serr == nil {
		x.since, x.boot, x.digest, x.prune = since, uint32(boot), f[2], prune
	}
	return x
}

// make makes the directories of the index.
func (x *index) make(path string) {
	err := os.MkdirAll(filepath.Join(path, "words"), 0o700)
	if err == nil && x.fd < 0 {
		x.fd, err = unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	}
	x.note(err)
}

func (x *index) note(err error) {
	if x.err == nil && err != nil {
		x.err = fmt.Errorf("write the index: %w", err)
	}
}

// save writes the state, which always has the same length, so that nothing needs to be truncated.
func (x *index) save() {
	fd, err := unix.Openat(x.fd, "state", unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK,
		0o600)
	if err == nil {
		_, err = unix.Pwrite(fd, fmt.Appendf(nil, "%016x %08x %s %8d\n", x.since, x.boot, x.digest, x.prune), 0)
		unix.Close(fd)
	}
	x.note(err)
}

func (x *index) close() {
	x.closeBlocks()
	unix.Close(x.fd)
}

// get returns the values under a name.
func (x *index) get(name string) []string { return slices.Collect(x.values(name)) }

func (x *index) values(name string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := 0; ; i++ {
			v, err := x.readlink(numbered(name, i))
			if err != nil {
				break
			}
			if !yield(v) {
				return
			}
		}
		for _, v := range x.entries[name] {
			if !yield(v) {
				return
			}
		}
	}
}

func (x *index) readlink(name string) (string, error) {
	var b [256]byte
	n, err := unix.Readlinkat(x.fd, name, b[:])
	return string(b[:max(n, 0)]), err
}

// numbered returns the file name of the i-th value under name.
func numbered(name string, i int) string {
	if i == 0 {
		return name
	}
	return name + "." + strconv.Itoa(i)
}

// at returns the index of the value about a, or -1.
func at(values []string, a netip.Addr) int {
	return slices.IndexFunc(values,
		func(v string) bool { first, _, _ := strings.Cut(v, " "); return first == a.String() })
}

// set stores a value about a under a name, and replaces an earlier value about a.
func (x *index) set(name string, a netip.Addr, value string) {
	all := x.get(name)
	i := at(all, a)
	if i < 0 {
		i = len(all)
	} else if all[i] == value {
		return
	}
	if x.err == nil {
		err := unix.Symlinkat(value, x.fd, numbered(name, i))
		if errors.Is(err, unix.EEXIST) {
			_ = unix.Unlinkat(x.fd, ".new", 0) // what a call left that was killed
			err = unix.Symlinkat(value, x.fd, ".new")
			if err == nil {
				err = unix.Renameat(x.fd, ".new", x.fd, numbered(name, i))
			}
		}
		x.note(err)
	}
	if x.err != nil {
		x.entries[name] = append(x.entries[name], value)
	}
}

// remove removes the value about a from a name, and moves the last value into its place.
func (x *index) remove(name string, a netip.Addr) {
	if i := at(x.entries[name], a); i >= 0 {
		x.entries[name] = slices.Delete(x.entries[name], i, i+1)
	}
	all := x.get(name)
	last := numbered(name, len(all)-len(x.entries[name])-1)
	switch i := at(all, a); {
	case i < 0:
	case numbered(name, i) == last:
		x.note(unix.Unlinkat(x.fd, last, 0))
	default:
		x.note(unix.Renameat(x.fd, last, x.fd, numbered(name, i)))
	}
}

// An entry is what the index knows about a lease: its owner and, if the lease file has not changed since, how it was
// made.
type entry struct {
	owner string // a name in the index, see ownerName
	addr  netip.Addr
	stamp uint32 // which file it was written down for, see stamp
	boot  uint32 // the boot in which the lease was made; 0: not known
	netns uint32 // the path of the container's namespace, see netnsOf; 0: not known
	key   uint32 // the sticky key of the owner, see record.keyNumber; noKey: it has none; 0: not known
}

const noKey = 1

// lease adds a lease.
func (x *index) lease(e entry) {
	x.set(e.owner, e.addr, fmt.Sprintf("%s %x %x %x %x", e.addr, e.stamp, e.boot, e.netns, e.key))
}

// parseEntry parses a value under the name of an owner.
func parseEntry(owner, value string) (e entry, ok bool) {
	f := strings.Fields(value)
	if len(f) != 5 {
		return e, false
	}
	e.owner = owner
	var err error
	if e.addr, err = netip.ParseAddr(f[0]); err != nil {
		return e, false
	}
	for i, n := range []*uint32{&e.stamp, &e.boot, &e.netns, &e.key} {
		v, err := strconv.ParseUint(f[i+1], 16, 32)
		if err != nil {
			return e, false
		}
		*n = uint32(v)
	}
	return e, true
}

// leases iterates over the leases of an owner.
func (x *index) leases(owner string) iter.Seq[entry] {
	return func(yield func(entry) bool) {
		for v := range x.values(owner) {
			if e, ok := parseEntry(owner, v); ok && !yield(e) {
				return
			}
		}
	}
}

// ownerName returns the name in the index of the owner in a lease file with this text.
func ownerName(text string) string { return "o" + digest("lease", text) }

// digest returns a short hash of a text of the given kind.
func digest(kind, text string) string {
	sum := sha256.Sum256([]byte(kind + "\x00" + text))
	return hex.EncodeToString(sum[:16])
}

// number returns a hash of a text of the given kind, which is never 0 or 1.
func number(kind, text string) uint32 {
	sum := sha256.Sum256([]byte(kind + "\x00" + text))
	return binary.LittleEndian.Uint32(sum[:]) | 2
}
