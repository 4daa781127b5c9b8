package packetfilter

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// What rules change, of the packet and beside it, so that later rules ask for something else than there was before.

// key names a set among those of all tables.
func (t *nftTable) key(set string) string { return fmt.Sprintf("\n%v %s\n", t, set) }

// touch marks what is in a set as unknown from now on: a rule adds to it or deletes from it.
func (m *machine) touch(set string) {
	if key := m.table.key(set); !strings.Contains(m.w.p.touched, key) {
		m.w.p.touched += key
	}
}

func (m *machine) touched(set string) bool {
	return m.w.p.lost || strings.Contains(m.w.p.touched, m.table.key(set))
}

// dynset adds an element to a set, or deletes it. Where there is no room for it, the rest of the rule is not run.
func (m *machine) dynset(d []byte) bool {
	name := attrText(d, unix.NFTA_DYNSET_SET_NAME)
	s, err := m.table.set(name)
	if err != nil {
		m.w.err = err
		return false
	}
	full := s.size > 0 && (m.touched(name) || len(s.list) >= s.size)
	m.touch(name)
	state := attr(d, unix.NFTA_DYNSET_EXPR) != nil || attr(d, dynsetExpressions) != nil
	if full || state || attr32(d, unix.NFTA_DYNSET_FLAGS) != 0 {
		return m.on(maybe, "what the set "+name+" has counted")
	}
	return true
}

// notrack keeps conntrack from the packet, where it comes before conntrack.
func (w *walk) notrack(sure tri) {
	switch {
	case w.pf == unix.NFPROTO_BRIDGE, w.uncertain != nil: // some packets do not come here
		sure = maybe
	case !w.early:
		return
	}
	w.untracked = max(w.untracked, sure)
}

// lose is for rules that are not followed: they may have changed whatever rules change without a trace.
func (w *walk) lose() {
	w.p.lost, w.ctWritten, w.mark = true, true, unknown(4)
	if w.early || w.pf == unix.NFPROTO_BRIDGE {
		w.untracked = max(w.untracked, maybe)
	}
}

// alter says that the packet is another one from here on, or that this is unknown.
func (w *walk) alter() {
	w.p.altered = true
	w.lose()
}
