package disk

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"net/netip"
)

// The index is one file of pages: a header, a hash table of buckets of one page each, and blocks. A
// bucket's slots say which address an owner has (kindLease), which one a sticky key had last (kindSticky), and
// where an address's block is (kindBlock). A
// block holds a word for each of 1024 neighbouring addresses: taken, or when it was given back. So an
// owner's lease is one page away, and a run of taken addresses is passed over without asking the
// directory. Above the blocks are tops (kindTop), which say of each of 1024 blocks how many are taken, so that full blocks
// are not looked at. All of it is a hint that a scan of the directory can make anew, save slot.boot and slot.netns.
const (
	pageSize = 4096
	slotSize = 64
	perPage  = pageSize / slotSize
	perBlock = pageSize / 4

	kindFree   = 0
	kindLease  = 1
	kindBlock  = 2
	kindSticky = 3
	kindTop    = 4

	taken = ^uint32(0) // any other word but 0 is a time of release, or of a hold's end
	magic = "fairlead ipam 3\n"

	fewSticky   = 256 // which it is not worth to look through for those whose time has run out
	fewBuckets  = 8
	mostBuckets = 1 << 22
)

// A key stands for what a lease file says, which is how the index knows owners.
type key [16]byte

func keyOf(kind, text string) key {
	sum := sha256.Sum256([]byte(kind + "\x00" + text))
	return key(sum[:16])
}

// number is text as a number that is never 0.
func number(text string) uint64 {
	k := keyOf("number", text)
	return binary.LittleEndian.Uint64(k[:]) | 1
}

// A slot is one entry of the hash table.
type slot struct {
	key   key
	addr  netip.Addr
	boot  uint64 // the boot in which the lease was made; 0: not known
	netns uint64 // the path of the container's namespace, see netnsOf; 0: not known. For a sticky key: who has its address
	stamp uint64 // seals the above, and the lease file that it was written down for
	kind  uint32
	page  uint32 // where a block is
}

// seal binds s to the file with that stamp.
func (s slot) seal(file uint64) slot {
	s.stamp = file
	s.stamp = number(string(s.encode()))
	return s
}

// of reports whether s was written down for the file with that stamp.
func (s slot) of(file uint64) bool { return s == s.seal(file) }

func (s slot) encode() []byte {
	b := make([]byte, slotSize)
	copy(b, s.key[:])
	a := s.addr.As16()
	copy(b[16:], a[:])
	binary.LittleEndian.PutUint64(b[32:], s.boot)
	binary.LittleEndian.PutUint64(b[40:], s.netns)
	binary.LittleEndian.PutUint64(b[48:], s.stamp)
	binary.LittleEndian.PutUint32(b[56:], s.kind)
	binary.LittleEndian.PutUint32(b[60:], s.page)
	return b
}

func decodeSlot(b []byte) slot {
	return slot{
		key:   key(b[:16]),
		addr:  netip.AddrFrom16([16]byte(b[16:32])).Unmap(),
		boot:  binary.LittleEndian.Uint64(b[32:]),
		netns: binary.LittleEndian.Uint64(b[40:]),
		stamp: binary.LittleEndian.Uint64(b[48:]),
		kind:  binary.LittleEndian.Uint32(b[56:]),
		page:  binary.LittleEndian.Uint32(b[60:]),
	}
}

// A header says what the rest of the index is true of.
type header struct {
	boot    uint64 // the boot in which the directory was scanned
	inode   uint64 // the network's directory, and when it was changed last
	mtime   int64
	lasts   uint32 // how many last_reserved_ip files were looked at, and what they said
	digest  key
	buckets uint32
	pages   uint32
	sticky  uint32 // how many slots are sticky keys'
	pruned  uint32 // … and were, when those were removed whose time had run out
}

func (h header) encode() []byte {
	b := make([]byte, 96)
	copy(b, magic)
	binary.LittleEndian.PutUint64(b[16:], h.boot)
	binary.LittleEndian.PutUint64(b[24:], h.inode)
	binary.LittleEndian.PutUint64(b[32:], uint64(h.mtime))
	binary.LittleEndian.PutUint32(b[40:], h.lasts)
	copy(b[44:], h.digest[:])
	binary.LittleEndian.PutUint32(b[60:], h.buckets)
	binary.LittleEndian.PutUint32(b[64:], h.pages)
	binary.LittleEndian.PutUint32(b[68:], h.sticky)
	binary.LittleEndian.PutUint32(b[72:], h.pruned)
	sum := keyOf("header", string(b[:80]))
	copy(b[80:], sum[:])
	return b
}

func decodeHeader(b []byte) (h header, ok bool) {
	sum := keyOf("header", string(b[:80]))
	if string(b[:16]) != magic || !bytes.Equal(b[80:96], sum[:]) {
		return header{}, false
	}
	h = header{
		boot:    binary.LittleEndian.Uint64(b[16:]),
		inode:   binary.LittleEndian.Uint64(b[24:]),
		mtime:   int64(binary.LittleEndian.Uint64(b[32:])),
		lasts:   binary.LittleEndian.Uint32(b[40:]),
		digest:  key(b[44:60]),
		buckets: binary.LittleEndian.Uint32(b[60:]),
		pages:   binary.LittleEndian.Uint32(b[64:]),
		sticky:  binary.LittleEndian.Uint32(b[68:]),
		pruned:  binary.LittleEndian.Uint32(b[72:]),
	}
	pow2 := h.buckets > 0 && h.buckets&(h.buckets-1) == 0
	return h, pow2 && h.buckets <= mostBuckets && h.pages > h.buckets
}

// An index is open on its file, or in memory only where the file cannot be written.
type index struct {
	header
	path  string
	store store
	extra []slot // what the table has no room for
	buf   page
	found map[where]uint32 // pages of blocks and tops
	top   page             // one of them
	topAt uint32           // … which: 0 none

	tallied bool  // the header counts otherwise than on disk
	err     error // the first thing that went wrong: the file is not to be signed then
}

// newIndex is an empty index in memory, made for n leases.
func newIndex(path string, boot uint64, n int) *index {
	x := &index{path: path}
	x.boot, x.buckets = boot, fewBuckets
	for int(x.buckets)*perPage/2 < n && x.buckets < mostBuckets {
		x.buckets *= 2
	}
	x.pages = 1 + x.buckets
	x.store = &memory{make([]byte, int(x.pages)*pageSize)}
	return x
}

// openIndex reads the index at path, which need not be true any more. It is nil if there is none that
// can be read.
func openIndex(path string) *index {
	f, size, err := openFile(path)
	if err != nil {
		return nil
	}
	x := &index{path: path, store: f}
	p, err := f.read(0, &x.buf)
	ok := err == nil
	if ok {
		x.header, ok = decodeHeader(p[:])
	}
	if !ok || size < int64(1+x.buckets)*pageSize {
		f.close()
		return nil
	}
	return x
}

func (x *index) note(err error) {
	if x.err == nil {
		x.err = err
	}
}

// page returns a page, which holds until the next one is asked for.
func (x *index) page(n uint32) *page { return x.pageIn(n, &x.buf) }

func (x *index) pageIn(n uint32, buf *page) *page {
	p, err := x.store.read(n, buf)
	x.note(err)
	return p
}

func (x *index) write(page uint32, at int, b []byte) {
	x.note(x.store.write(int64(page)*pageSize+int64(at), b))
}

func (x *index) bucket(k key) uint32 {
	return 1 + binary.LittleEndian.Uint32(k[:])&(x.buckets-1)
}

// lookup returns the slots of a key.
func (x *index) lookup(k key) (found []slot) {
	p := x.page(x.bucket(k))
	for i := range perPage {
		if b := p[i*slotSize:][:slotSize]; key(b[:16]) == k {
			if s := decodeSlot(b); s.kind != kindFree {
				found = append(found, s)
			}
		}
	}
	for _, s := range x.extra {
		if s.key == k {
			found = append(found, s)
		}
	}
	return found
}

// insert puts s in, in the place of a slot of the same key and address where there is one. It reports
// whether the bucket has room.
func (x *index) insert(s slot) bool {
	n := x.bucket(s.key)
	p := x.page(n)
	at, there := -1, false
	for i := range perPage {
		b := p[i*slotSize:][:slotSize]
		switch kind := binary.LittleEndian.Uint32(b[56:]); {
		case kind == kindFree && at < 0:
			at = i
		case kind == s.kind && key(b[:16]) == s.key && decodeSlot(b).addr == s.addr:
			at, there = i, true
		}
	}
	if at < 0 {
		return false
	}
	if there {
		x.tally(decodeSlot(p[at*slotSize:][:slotSize]), -1)
	}
	x.tally(s, 1)
	if s.paged() && s.page == 0 {
		s.page = x.pages
		x.pages++
	}
	x.write(n, at*slotSize, s.encode())
	return true
}

// paged reports whether s speaks of a page of its own.
func (s slot) paged() bool { return s.kind == kindBlock || s.kind == kindTop }

// tally counts s in, or out.
func (x *index) tally(s slot, n int) {
	if s.kind == kindSticky {
		x.sticky = uint32(max(int(x.sticky)+n, 0))
		x.tallied = true
	}
}

// add inserts s and makes room for it if need be.
func (x *index) add(s slot) {
	if x.insert(s) {
		return
	}
	x.grow()
	if !x.insert(s) {
		x.extra = append(x.extra, s)
		x.note(errors.New("more addresses of one owner than the index holds"))
	}
}

// remove takes a lease out.
func (x *index) remove(k key, a netip.Addr) { x.removeKind(kindLease, k, a) }

func (x *index) removeKind(kind uint32, k key, a netip.Addr) {
	n := x.bucket(k)
	p := x.page(n)
	for i := range perPage {
		if s := decodeSlot(p[i*slotSize:][:slotSize]); s.kind == kind && s.key == k && s.addr == a {
			x.write(n, i*slotSize, make([]byte, slotSize))
			x.tally(s, -1)
		}
	}
}

// all calls f with every slot.
func (x *index) all(f func(slot)) {
	var buf page // f may ask for pages
	for n := range x.buckets {
		p := x.pageIn(1+n, &buf)
		for i := range perPage {
			if s := decodeSlot(p[i*slotSize:][:slotSize]); s.kind != kindFree {
				f(s)
			}
		}
	}
	for _, s := range x.extra {
		f(s)
	}
}

// grow makes the table wider. It happens when a bucket's 64 slots are full, so once in a long while, and
// costs as much as writing the index anew. Where buckets are all but empty, one owner fills one, and
// growing would not help.
func (x *index) grow() {
	var slots []slot
	x.all(func(s slot) { slots = append(slots, s) })
	for width := x.buckets * 2; width <= mostBuckets && int(width)*perPage/8 <= len(slots); width *= 2 {
		wide := &index{path: x.path, header: x.header, store: &memory{}, err: x.err, extra: x.extra}
		wide.buckets, wide.pages, wide.sticky = width, 1+width, 0
		if wide.fill(slots, x) {
			if _, unsaved := x.store.(*memory); !unsaved {
				wide.save()
			}
			x.store.close()
			*x = *wide
			return
		}
	}
}

// fill puts the slots of from in, and the blocks that they speak of.
func (x *index) fill(slots []slot, from *index) bool {
	for _, s := range slots {
		if s.paged() {
			p := from.page(s.page)
			s.page = x.pages
			x.pages++
			x.write(s.page, 0, p[:])
		}
		if !x.insert(s) {
			return false
		}
	}
	return true
}

// save moves an index from memory to its file. Where that fails it goes on in memory, for this call.
func (x *index) save() {
	m, ok := x.store.(*memory)
	if !ok {
		return
	}
	x.inode, x.mtime = 0, 0 // true of nothing until it is signed
	x.write(0, 0, x.header.encode())
	f, err := m.save(x.path, x.pages)
	x.note(err)
	if err == nil {
		x.store = f
	}
}
