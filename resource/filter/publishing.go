package filter

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/conntrack"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/nft"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// publish writes into b what turns the owner's claims into those of pub. Whoever else claims them and is
// of another container is an error if he lives, and loses all that he published if not.
func (f filter) publish(w *kernel.World, b *nft.Batch, o spec.Owner,
	pub *published) (flows []conntrack.UDPFlow, fresh []wanted, err error) {
	me, link := identity.OwnerHash(o), uint32(0)
	if l, err := pub.hostEnd(w, o); err != nil {
		return nil, nil, err
	} else if l != nil {
		link = uint32(l.Index)
	}
	have, err := f.entries(me, kindPublish)
	if err != nil {
		return nil, nil, err
	}
	mapped, plain := split(have)
	near, err := f.around(pub.claims)
	if err != nil {
		return nil, nil, err
	}
	claims, err := f.readClaims(slices.Concat(slotsOf(f.t, mapped), near))
	if err != nil {
		return nil, nil, err
	}
	dead, err := claims.rivals(w, me, pub.claims)
	if err != nil {
		return nil, nil, err
	}

	at, err := f.current(plain, pub.plain)
	if err != nil {
		return nil, nil, err
	}
	for hash := range dead {
		if err := f.evict(b, hash, claims, at); err != nil {
			return nil, nil, err
		}
	}

	fresh = claims.want(me, link, pub.claims)
	f.replace(b, me, plain, pub.plain, at)
	changing := dead
	changing[me] = true
	if flows, err = f.applyClaims(b, claims, changing); err != nil {
		return nil, nil, err
	}
	f.record(b, o, kindPublish, have, pub.places())
	return flows, fresh, nil
}

// evict writes into b that somebody loses all that he published. At is what the elements are that b is about.
func (f filter) evict(b *nft.Batch, hash [8]byte, claims slotClaims, at map[string]*nft.Elem) error {
	theirs, err := f.entries(hash, kindPublish)
	if err != nil {
		return err
	}
	mapped, plain := split(theirs)
	more, err := f.readClaims(slotsOf(f.t, mapped))
	if err != nil {
		return err
	}
	claims.join(more)
	claims.remove(hash)
	left, err := f.current(plain, nil)
	if err != nil {
		return err
	}
	maps.Copy(at, left)
	f.replace(b, hash, plain, nil, at)
	f.forget(b, theirs)
	return nil
}

// want makes all the owner's claims. What was wanted before and is now stays where it is, so that nothing is written
// for it. Fresh are those that were not there.
func (m slotClaims) want(me [8]byte, link uint32, all []wanted) (fresh []wanted) {
	asked := map[string][]portClaim{}
	for _, c := range all {
		asked[c.key()] = append(asked[c.key()], c.portClaim)
	}
	for k, c := range m {
		c.remove(func(d portClaim) bool {
			return d.owner == me && !slices.ContainsFunc(asked[k], func(want portClaim) bool {
				return want.same(d) && (link == 0 || d.link == link)
			})
		})
	}
	for _, want := range all {
		c, mine := m[want.key()], want.portClaim
		mine.link = link
		if !slices.ContainsFunc(c.after, func(d portClaim) bool { return d.owner == me && d.same(mine) }) {
			c.after = append(c.after, mine)
			fresh = append(fresh, want)
		}
	}
	return fresh
}

// rivals are the dead who have what is wanted. The living are errors, as many as one can read.
func (m slotClaims) rivals(w *kernel.World, me [8]byte, all []wanted) (dead map[[8]byte]bool, err error) {
	dead = map[[8]byte]bool{}
	var found []conflict
	for _, want := range all {
		mine := want.portClaim
		for _, c := range m.near(want) {
			for _, d := range c.before {
				mate := d.container == mine.container
				switch {
				case d.owner == me || !mine.overlaps(d):
				case !mate && d.to == mine.to && d.link == 0 && d.network() == mine.network(): // which IPAM gave to this one
					dead[d.owner] = true
				case !mine.meets(d) || mate && (mine.at(d) || d.host != mine.host):
				case vanished(w, d.link):
					dead[d.owner] = true
				default:
					found = conflictOf(want, d).among(found)
				}
			}
		}
	}
	var errs []error
	for i, c := range found {
		if i == 8 {
			errs = append(errs, fmt.Errorf("and %d more", len(found)-i))
			break
		}
		errs = append(errs, c.err())
	}
	return dead, errors.Join(errs...)
}

// near are the slots where claims stand that may have a port in common with what is wanted.
func (m slotClaims) near(want wanted) (all []*claimedSlot) {
	if want.first < want.last {
		for _, c := range m {
			if c.claims.Name == want.claims.Name && c.proto == want.proto {
				all = append(all, c)
			}
		}
		return all
	}
	return []*claimedSlot{m[want.key()], m[want.rangesOf(want.proto).key()]}
}

// A conflict is a port that somebody else has published. He may lead it to an address of each family, and has it once.
type conflict struct {
	what string
	to   []string // empty: the same container
	want string
	by   string // the other container's attachment, as spec.Owner has it
}

// among adds c to others, or to the one that says the same.
func (c conflict) among(others []conflict) []conflict {
	for i, o := range others {
		if o.what == c.what && o.want == c.want {
			others[i].to = append(o.to, c.to...)
			return others
		}
	}
	return append(others, c)
}

func (c conflict) err() error {
	leads := ""
	if len(c.to) > 0 {
		leads = " and leads to " + strings.Join(c.to, " and ")
	}
	return spec.Errorf(spec.CodeConfig, "%s%s: %s", c.what, leads, c.want).WithHint(spec.Origin(mappingsKey)).HeldBy(c.by)
}

// mappingsKey is where the published ports are said.
const mappingsKey = "runtimeConfig.portMappings"

func conflictOf(c wanted, d portClaim) conflict {
	_, _, who, _ := identity.ParseTag(d.comment)
	first, last := max(c.first, d.first), min(c.last, d.last)
	what, is, part, to := "port", "is", "", netip.AddrPortFrom(d.to, d.toPort).String()
	if last > first {
		what, is = "ports", "are"
	}
	if d.first < d.last {
		to = d.to.String()
		part = " in the range " + portsText(d.first, d.last)
	}
	if !d.host.IsUnspecified() {
		part += " at " + d.host.String()
	}
	what = fmt.Sprintf("%s %s %s %s", kernel.ProtoName(c.proto), what, portsText(first, last), is)
	if d.container == c.container {
		return conflict{what + " published" + part + " by another attachment of this container, " + who, nil,
			"want the same range for both, or none in common", ""}
	}
	return conflict{what + " published" + part + " by " + who, []string{to},
		"publish another port or host address, or remove that attachment (DEL, or GC where its container is gone)", who}
}

func (f filter) publishedDrift(o spec.Owner, pub *published) (d resource.Drift, err error) {
	me := identity.OwnerHash(o)
	have, err := f.entries(me, kindPublish)
	if err != nil {
		return nil, err
	}
	at, err := f.current(nil, pub.plain)
	if err != nil {
		return nil, err
	}
	var slots []slot
	var places []nft.Elem
	for _, c := range pub.claims {
		slots = append(slots, c.slot)
		places = append(places, c.mappingOf(c.portClaim))
	}
	claims, err := f.readClaims(slots)
	if err != nil {
		return nil, err
	}
	found, err := f.Get(places...)
	if err != nil {
		return nil, err
	}
	for i, want := range pub.claims {
		c, mine := claims[want.key()], want.portClaim
		if i := slices.IndexFunc(c.before, func(d portClaim) bool { return d.owner == me && d.at(mine) }); i < 0 {
			d.Add(fmt.Errorf("nft element %v is not in %s", want.mappingOf(mine), want.set().Name))
		} else if !c.before[i].same(mine) {
			d.Add(fmt.Errorf("nft element %v is %s", want.element(i, mine), c.element(i, c.before[i]).DataText()))
		}
		now := found[i]
		if now != nil && slices.ContainsFunc(c.before, func(d portClaim) bool {
			return d.owner != me && d.container == mine.container && taggedBy(now, d.owner) && sameData(*now, c.mappingOf(d))
		}) {
			continue // another interface of the same container leads, and this one stands by
		}
		d.Add(elementDrift(now, want.mappingOf(mine)))
	}
	for _, h := range pub.plain {
		d.Add(heldDrift(h, at))
	}
	return append(d, recordDrift(have, pub.places())...), nil
}
