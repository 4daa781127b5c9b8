package blocks

import (
	"fmt"
	"slices"
	"strings"
)

// unserved says which machine lacks the addresses of one family for good, though it has some of the other one and a block that it
// wants is free.
func (w *world) unserved() string {
	if !w.both {
		return ""
	}
	w = w.clone()
	w.limbo = nil
	for i := range w.machines {
		w.machines[i].on = true
	}
	if why := w.settle(); why != "" && !strings.HasSuffix(why, "do not come to rest") { // one that wants more than there is looks for ever
		return why
	}
	for i := range w.machines {
		m := &w.machines[i]
		hasSix, lacks := len(m.granted.of(six.Name)) > 0, len(m.granted.of("p")) == 0
		if m.agent.refusal == nil && m.want > 0 && hasSix && lacks && w.hasFree() {
			return fmt.Sprintf("lost: machine %d has addresses of IPv6 alone, and blocks of IPv4 are free", i)
		}
	}
	return ""
}

// hasFree reports whether a block of IPv4 is free.
func (w *world) hasFree() bool {
	taken := slices.DeleteFunc(slices.Clone(w.store.entries), func(e Entry) bool {
		return e.Key.Pool != "p" || e.Key.Kind != BlockKey && e.Key.Kind != GraveKey
	})
	return len(taken) < w.blocks
}
