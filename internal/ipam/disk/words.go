package disk

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/ipam"
	"golang.org/x/sys/unix"
)

// A word says what became of an address: 0 nothing, taken, the clock at which it was given back, or until when it
// is held. So a free address is found without a look at the lease files, in a range that is nearly full too. The
// words of 65536 neighbours are a file.
const (
	taken    = ^uint32(0)
	holdBit  = 1 << 31 // of a word that says until when an address is held for a sticky key: seconds of this boot
	perBlock = 1 << 16
	chunk    = 1 << 12 // how many are read at once
)

// base returns the first address of a's block.
func base(a netip.Addr) netip.Addr {
	b := a.As16()
	b[14], b[15] = 0, 0
	out := netip.AddrFrom16(b)
	if a.Is4() {
		return out.Unmap()
	}
	return out
}

// place returns the position of a in its block.
func place(a netip.Addr) int {
	b := a.As16()
	return int(binary.BigEndian.Uint16(b[14:]))
}

// block returns the descriptor of the file with a's words, or -1.
func (x *index) block(a netip.Addr, create int) int {
	from := base(a)
	fd, open := x.blocks[from]
	if open && (fd >= 0 || create == 0) {
		return fd
	}
	const flags = unix.O_RDWR | unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK
	fd, err := unix.Openat(x.fd, "words/"+from.String(), flags|create, 0o600)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		x.note(err)
	}
	x.blocks[from] = fd
	return fd
}

func (x *index) closeBlocks() {
	for _, fd := range x.blocks {
		unix.Close(fd)
	}
	clear(x.blocks)
}

// read returns the words of a and its next neighbours, at most n words and at most chunk. They are valid until the next
// call.
func (x *index) read(a netip.Addr, n int) []byte {
	n = min(n, perBlock-place(a), chunk)
	if len(x.buf) < n*4 {
		x.buf = make([]byte, n*4)
	}
	b, got := x.buf[:n*4], 0
	if fd := x.block(a, 0); fd >= 0 {
		var err error
		got, err = unix.Pread(fd, b, int64(place(a))*4)
		x.note(err)
	}
	clear(b[max(got, 0):])
	for at, word := range x.words {
		if i := place(at) - place(a); base(at) == base(a) && i >= 0 && i < n {
			binary.LittleEndian.PutUint32(b[i*4:], word)
		}
	}
	return b
}

func (x *index) word(a netip.Addr) uint32 { return binary.LittleEndian.Uint32(x.read(a, 1)) }

// mark records the state of a.
func (x *index) mark(a netip.Addr, word uint32) {
	var b [4]byte
	binary.LittleEndian.PutUint32(b[:], word)
	_, err := unix.Pwrite(x.block(a, unix.O_CREAT), b[:], int64(place(a))*4)
	if err != nil {
		x.note(err)
		x.words[a] = word
	}
}

// all calls f with every address that has a word.
func (x *index) all(f func(a netip.Addr, word uint32)) {
	names, _ := list(x.fd, "words")
	for a := range x.words {
		names = append(names, base(a).String())
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		from, err := netip.ParseAddr(name)
		if err != nil || base(from) != from {
			continue
		}
		var words []byte
		for i := 0; i < perBlock; i += chunk {
			words = append(words, x.read(ipam.Plus(from, uint64(i)), chunk)...)
		}
		for i := range perBlock {
			if word := binary.LittleEndian.Uint32(words[i*4:]); word != 0 {
				f(ipam.Plus(from, uint64(i)), word)
			}
		}
	}
}

// How good a find of free's is.
const (
	nowhere = iota
	held    // for a sticky key
	tired   // it has not rested since its release
	rested  // or was never given out
)

// free finds an address that is not in use. It prefers the first one in order whose cooldown is over, then the one with
// the longest time since its release, then the one whose sticky key has the shortest time left.
func (x *index) free(order []ipam.Span, now clock, rest time.Duration) (found netip.Addr, how int) {
	var since uint32
	n := 1 << 8 // mostly one of the first is free
	for _, sp := range order {
		for from := sp.First; from.IsValid() && !sp.Last.Less(from); n = chunk {
			if base(from) == base(sp.Last) {
				n = min(n, place(sp.Last)-place(from)+1)
			}
			b := x.read(from, n)
			for i := 0; i < len(b); i += 4 {
				word := binary.LittleEndian.Uint32(b[i:])
				if word == taken {
					continue
				}
				at := ipam.Plus(from, uint64(i/4))
				switch {
				case at == sp.Gateway:
				case word == 0, isHold(word) && now.left(word) <= 0, !isHold(word) && now.since(word) >= rest:
					return at, rested
				case isHold(word) && (how == nowhere || how == held && word < since):
					found, how, since = at, held, word
				case !isHold(word) && (how < tired || word < since):
					found, how, since = at, tired, word
				}
			}
			from = ipam.Plus(from, uint64(len(b)/4-1)).Next()
		}
	}
	return found, how
}

// census is that of the index, or of the files if the index cannot be read.
func (d *directory) census(set ipam.Set, reserved ipam.Reserved, now clock, rest time.Duration) (ipam.Use, error) {
	u := d.x.census(set, reserved, now, rest)
	if d.x.err == nil || d.fresh {
		return u, nil
	}
	err := d.rescan()
	return d.x.census(set, reserved, now, rest), err
}

// census counts the addresses of set that are not reserved, by their state.
func (x *index) census(set ipam.Set, reserved ipam.Reserved, now clock, rest time.Duration) (u ipam.Use) {
	var n, resting, holding uint64
	x.all(func(a netip.Addr, word uint32) {
		r, ok := set.Find(a)
		switch {
		case !ok || a == r.Gateway || reserved.Contains(a):
		case word == taken:
			n++
		case isHold(word) && now.left(word) > 0:
			holding++
		case !isHold(word) && now.since(word) < rest:
			resting++
		}
	})
	u.Used, u.Held, u.Resting = ipam.CountOf(n), ipam.CountOf(holding), ipam.CountOf(resting)
	return u
}

// A clock is a time of this boot in tenths of a second, starting with 1.
type clock uint32

func (c clock) since(word uint32) time.Duration {
	return time.Duration(int64(c)-int64(word)) * (time.Second / 10)
}

func isHold(word uint32) bool { return word != taken && word&holdBit != 0 }

// held returns the word of an address that is held from c for the given time.
func (c clock) held(left time.Duration) uint32 {
	return holdBit | uint32(min(int64(c/10)+int64((left+time.Second-1)/time.Second), holdBit-2))
}

// left returns how long, from c on, an address with this word is held.
func (c clock) left(word uint32) time.Duration {
	return time.Duration(int64(word&^holdBit)-int64(c/10)) * time.Second
}
