package repair

import (
	"context"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/restore"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/filter/forward"
	"github.com/fairlead-cni/fairlead/resource/reference"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// reference adds what the reference's plugin p makes in iptables, as far as that is known. It does not ask for leases.
func (a *attached) reference(ctx context.Context, p sdk.Plugin, t attach.Input, at sdk.Attached) {
	conf, err := spec.ParseConf(t.Stdin)
	if err != nil {
		return
	}
	at.Allocators = nil
	is, err := p.Standing(ctx, &at, conf)
	if err != nil {
		return
	}
	a.known = true
	for _, planned := range is.Plan {
		r, made := plan.Unwrap(planned).(plan.Resource)
		if !made {
			continue
		}
		if reference.MatchesReference(r) {
			a.ofReference = append(a.ofReference, r)
			continue
		}
		to, _, _ := reference.Handover(r, forward.IPTables)
		a.ofReference = append(a.ofReference, to...)
	}
}

// verifyReference finds what the reference plugins made for the attachment and is missing. Their nf_tables rules are
// not known.
func (a *attached) verifyReference(ctx context.Context) {
	w, release := a.hold(ctx)
	if w == nil {
		return
	}
	defer release()
	if !a.r.Firewall {
		_, a.offline = Links(w, a.cached)
	}
	if there, err := reference.InNFT(w); there || err != nil {
		return
	}
	for _, r := range a.ofReference {
		for _, d := range resource.Compared(r, r.Verify(ctx, w)) {
			if d.Got == spec.Absent && d.Field != "table" { // else it is of this project, or could not be checked
				a.offline = append(a.offline, d)
			}
		}
	}
}

// others reports whether the list's first plugin p is of this project now, but was of another when it attached: the
// program was replaced since.
func (a *attached) others(p sdk.Plugin) bool {
	return !a.made && !a.handed && !p.Chained() && !tagged(a.host, a.cached)
}

// Ownership returns Foreign for an attachment that another program made, Handed for one that was handed over, and else
// "". P is the first plugin of its list.
func Ownership(c *attach.Cached, p sdk.Plugin) (State, error) {
	host, err := restore.OpenHost()
	if err != nil {
		return "", err
	}
	defer host.Close()
	a := &attached{host: host, cached: c, made: restore.WasAttached(host, c.Owner()),
		handed: restore.HandedOver(host, c.Owner())}
	switch {
	case a.handed:
		return Handed, nil
	case a.others(p):
		return Foreign, nil
	}
	return "", nil
}
