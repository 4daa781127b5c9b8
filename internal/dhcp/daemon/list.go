package daemon

import (
	"cmp"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/spec"
)

// An Entry is a lease in the output of `fairlead dhcp ls`.
type Entry struct {
	Owner    spec.Owner  `json:"owner"`
	Protocol string      `json:"protocol"`
	State    string      `json:"state"` // bound, renewing, rebinding, lost
	Reason   string      `json:"reason,omitempty"`
	Netns    string      `json:"netns"`
	Lease    *dhcp.Lease `json:"lease"`
	Renew    time.Time   `json:"renew,omitzero"`
	Over     time.Time   `json:"over,omitzero"`
	File     string      `json:"file"`
}

func (d *Daemon) list() []Entry {
	d.mu.Lock()
	ks := make([]*keeper, 0, len(d.keepers))
	for _, k := range d.keepers {
		ks = append(ks, k)
	}
	d.mu.Unlock()
	list := []Entry{}
	for _, k := range ks {
		list = append(list, k.entry())
	}
	slices.SortFunc(list, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.Owner.String(), b.Owner.String()), cmp.Compare(a.Protocol, b.Protocol))
	})
	return list
}

func (k *keeper) entry() Entry {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.rec.Lease
	e := Entry{Owner: k.rec.Ask.Owner, Protocol: k.rec.Protocol, State: "bound", Netns: k.rec.Netns, Lease: l,
		Over: l.Over(),
		File: k.d.store.path(k.rec.Ask.Owner, k.rec.Protocol)}
	if l.T1 != dhcp.Forever {
		e.Renew = l.Asked.Add(l.T1)
	}
	since := time.Since(l.Asked)
	switch {
	case k.lost != nil:
		e.State, e.Reason = "lost", k.lost.Error()
		return e
	case since >= l.T2:
		e.State = "rebinding"
	case since >= l.T1:
		e.State = "renewing"
	}
	if k.trouble != nil {
		e.Reason = k.trouble.Error()
	}
	return e
}
