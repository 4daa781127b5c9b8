package resource

import (
	"maps"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
)

const TuningRecord = "tuning"

// A Tuned is the record of an owner's Tunings: what they changed and the values from before.
type Tuned struct {
	NS     kernel.Identity // of the namespace, and
	Index  int             // of the link in it, that was changed: another one of that name was not
	Link   Changes
	Sysctl Changes // by path
	File   string  // the reference plugin's memory, see backUp
}

// Changes maps names of settings to their changes.
type Changes map[string]*change

// A change holds three values of a setting: the value before the first Tuning, the one that the last Tuning asked
// for, and the one that the kernel has made of it.
type change struct{ Was, Asked, Is string }

func (c Changes) Note(name, was, asked, is string) {
	if old, ok := c[name]; ok {
		was = old.Was
	}
	c[name] = &change{was, asked, is}
}

func (r Tuned) Clone() Tuned {
	r.Link, r.Sysctl = maps.Clone(r.Link), maps.Clone(r.Sysctl)
	return r
}

// RecallTuned returns the record of an owner's Tunings for the link l of that name. L is nil if the link does not
// exist. A record of another container, or of another link that had the name, does not count: known is false.
func RecallTuned(w *kernel.World, o spec.Owner, l *rtnl.Link, name string) (r Tuned, known bool, err error) {
	index := 0
	if l != nil {
		index = l.Index
	}
	if known, err = w.Store.Get(TuningRecord, o, &r); err == nil && known {
		known, err = w.Container.Is(r.NS)
	}
	if known && r.Index != index {
		r.Link = nil
		maps.DeleteFunc(r.Sysctl, func(path string, _ *change) bool { return strings.Contains(path, "/"+name+"/") })
	}
	if err == nil && !known {
		r = Tuned{}
		r.NS, err = w.Container.Identity()
	}
	r.Index = index
	if r.Link == nil {
		r.Link = Changes{}
	}
	if r.Sysctl == nil {
		r.Sysctl = Changes{}
	}
	return r, known, err
}

// MTU compares the MTU of a container interface with want. An MTU that a later Tuning of the same owner has set is no
// difference: results of versions before 1.1.0 cannot tell the new value (P16).
func (d *Drift) MTU(w *kernel.World, o spec.Owner, want int, l *rtnl.Link) {
	if want == 0 || want == l.MTU {
		return
	}
	rec, _, err := RecallTuned(w, o, l, l.Name)
	if d.Add(err); err == nil && (rec.Link["mtu"] == nil || rec.Link["mtu"].Is != strconv.Itoa(l.MTU)) {
		d.Want("mtu", want, l.MTU)
	}
}
