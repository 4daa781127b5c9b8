package publish

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/spec"
)

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
				// which IPAM gave to this one
				case !mate && d.to == mine.to && d.link == 0 && d.network() == mine.network():
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
			if c.Claims.Name == want.Claims.Name && c.proto == want.proto {
				all = append(all, c)
			}
		}
		return all
	}
	return []*claimedSlot{m[want.key()], m[rangesOf(want.PortMaps, want.proto).key()]}
}

// A conflict is a port that another owner has published. It may lead to an address of each family, and counts once.
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
	return spec.Errorf(spec.CodeConfig, "%s%s: %s", c.what, leads,
		c.want).WithOrigin(mappingsKey).HeldBy(c.by)
}

// mappingsKey is where the published ports are said.
const mappingsKey = "runtimeConfig.portMappings"

func conflictOf(c wanted, d portClaim) conflict {
	_, _, holder, _ := identity.ParseTag(d.comment)
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
		return conflict{what + " published" + part + " by another attachment of this container, " + holder, nil,
			"want the same range for both, or none in common", ""}
	}
	return conflict{what + " published" + part + " by " + holder, []string{to},
		"publish another port or host address, or remove that attachment (DEL, or GC where its container is gone)",
		holder}
}
