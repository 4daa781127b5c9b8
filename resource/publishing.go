package resource

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
)

// publish writes into b what turns the owner's claims into those of pub. Whoever else claims them and is
// of another container is an error if he lives, and loses all that he published if not.
func (f filter) publish(w *kernel.World, b *kernel.NFTBatch, o spec.Owner, pub *published) (flows []kernel.UDPFlow, fresh []claimed, err error) {
	me, link := kernel.OwnerHash(o), uint32(0)
	if l := hostEnd(w, o.IfName); l != nil {
		link = uint32(l.Index)
	}
	have, err := f.entries(me, kindPublish)
	if err != nil {
		return nil, nil, err
	}
	mapped, plain := split(have)
	slots := slotsOf(f.t, mapped)
	for _, c := range pub.claims {
		slots = append(slots, c.slot)
	}
	claims, err := f.claims(slots)
	if err != nil {
		return nil, nil, err
	}

	dead, err := claims.conflicts(w, me, pub.claims)
	if err != nil {
		return nil, nil, err
	}

	at, err := f.current(plain, pub.hairpin)
	if err != nil {
		return nil, nil, err
	}
	for hash := range dead {
		theirs, err := f.entries(hash, kindPublish)
		if err != nil {
			return nil, nil, err
		}
		mapped, plain := split(theirs)
		more, err := f.claims(slotsOf(f.t, mapped))
		if err != nil {
			return nil, nil, err
		}
		claims.join(more)
		claims.remove(hash)
		left, err := f.current(plain, nil)
		if err != nil {
			return nil, nil, err
		}
		for k, e := range left {
			at[k] = e
		}
		f.replace(b, hash, plain, nil, at)
		f.forget(b, theirs)
	}

	// What was wanted before and is now stays where it is, so that nothing is written for it.
	wanted := map[string][]claim{}
	for _, c := range pub.claims {
		wanted[c.key()] = append(wanted[c.key()], c.after[0])
	}
	for k, c := range claims {
		c.remove(func(d claim) bool {
			return d.owner == me && !slices.ContainsFunc(wanted[k], func(want claim) bool {
				return want.same(d) && (link == 0 || d.link == link)
			})
		})
	}
	for _, want := range pub.claims {
		c, mine := claims[want.key()], want.after[0]
		mine.link = link
		if !slices.ContainsFunc(c.after, func(d claim) bool { return d.owner == me && d.same(mine) }) {
			c.after = append(c.after, mine)
			fresh = append(fresh, want)
		}
	}
	f.replace(b, me, plain, pub.hairpin, at)
	if flows, err = f.lead(b, claims); err != nil {
		return nil, nil, err
	}
	f.record(b, o, kindPublish, have, pub.places())
	return flows, fresh, nil
}

// conflicts is an error for each of the wanted claims that a living container has; dead are the owners of those
// that a dead one has.
func (m claimants) conflicts(w *kernel.World, me [8]byte, wanted []claimed) (dead map[[8]byte]bool, err error) {
	var errs []error
	dead = map[[8]byte]bool{}
	for _, c := range wanted {
		mine := c.after[0]
		for _, d := range m[c.key()].before {
			switch {
			case d.owner == me || d.container == mine.container || !mine.overlaps(d):
			case d.to == mine.to || vanished(w, d.link):
				dead[d.owner] = true
			default:
				errs = append(errs, conflict(c, d))
			}
		}
	}
	return dead, errors.Join(errs...)
}

func conflict(c claimed, d claim) error {
	_, _, who, _ := kernel.ParseTag(d.comment)
	where := ""
	if !d.host.IsUnspecified() {
		where = " at " + d.host.String()
	}
	return spec.Errorf(spec.CodeConfig, "%s port %d is published%s by %s and leads to %v: publish another port or host address, or remove that attachment (DEL, or GC where its container is gone)",
		kernel.ProtoName(c.proto), c.port, where, who, netip.AddrPortFrom(d.to, d.toPort))
}

func (f filter) publishedDrift(o spec.Owner, pub *published) (d drift, err error) {
	me := kernel.OwnerHash(o)
	have, err := f.entries(me, kindPublish)
	if err != nil {
		return nil, err
	}
	at, err := f.current(nil, pub.hairpin)
	if err != nil {
		return nil, err
	}
	var slots []slot
	var places []kernel.NFTElem
	for _, c := range pub.claims {
		slots = append(slots, c.slot)
		places = append(places, c.place(c.after[0].host))
	}
	claims, err := f.claims(slots)
	if err != nil {
		return nil, err
	}
	found, err := f.Get(places...)
	if err != nil {
		return nil, err
	}
	for i, want := range pub.claims {
		c, mine := claims[want.key()], want.after[0]
		if i := slices.IndexFunc(c.before, func(d claim) bool { return d.owner == me && d.host == mine.host }); i < 0 {
			d.add(fmt.Errorf("nft element %v is not in %s", want.lead(mine), c.slot.claims.Name))
		} else if !c.before[i].same(mine) {
			d.add(fmt.Errorf("nft element %v is %s", want.claim(i, mine), c.claim(i, c.before[i]).DataText()))
		}
		now := found[i]
		if now != nil && slices.ContainsFunc(c.before, func(d claim) bool {
			return d.owner != me && d.container == mine.container && taggedBy(now, d.owner) && sameData(*now, c.lead(d))
		}) {
			continue // another interface of the same container leads, and this one stands by
		}
		d.add(elementDrift(now, want.lead(mine)))
	}
	for _, h := range pub.hairpin {
		d.add(elementDrift(at[place(h)], h))
	}
	return append(d, recordDrift(have, pub.places())...), nil
}
