package resource

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
)

// SweepLinks removes the links on the host that carry the mark of the network and whose owner keep does
// not want. A link without a tag, of an ADD that was killed before it wrote one, is asked about by itself.
//
// Whoever is root in a container may put any group and any alias on a device of the host that is lent to it. So nothing
// is deleted that is not of a kind that we make on the host, and without a tag nothing that has not a name that we give.
func SweepLinks(ctx context.Context, w *kernel.World, network string, keep func(owner [8]byte) bool, keepUntagged func(*kernel.Link) bool) error {
	errs := []error{sweepPorts(w, network, keep)}
	links, err := w.Host.Links()
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	group := kernel.LinkGroup(network)
	// Deleting a link takes the kernel a grace period, and deleting a group takes it one too: what is to go
	// is moved into a group of its own. One that was killed in between has left the rest there.
	doomed := doomedGroup(network)
	names, err := decoded[string](w.Memory.Records(hostNameRecord, network))
	errs = append(errs, err)
	chosen := slices.Collect(maps.Values(names))
	n := 0
	for _, l := range links {
		if l.Group != group && l.Group != doomed {
			continue
		}
		hash, owner, _, tagged := kernel.ParseTag(l.Alias)
		if !madeOnHost(l) || !tagged && !derivedName(l) && !slices.Contains(chosen, l.Name) {
			if l.Group == doomed { // it must not go with those that do
				none := uint32(0)
				if err := w.Host.MoveLink(l.Index, kernel.Move{Group: &none}); gone(err) != nil {
					return errors.Join(append(errs, err)...)
				}
			}
			continue
		}
		to := doomed
		if tagged && (hash != kernel.NetworkHash(network) || keep(owner)) || !tagged && keepUntagged(l) {
			to = group
		}
		if l.Group != to {
			if err := gone(w.Host.SetLink(l.Name, kernel.LinkChange{Group: to})); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		if to == doomed {
			n++
		}
	}
	if n > 0 {
		errs = append(errs, w.Host.DelGroup(doomed))
	}
	return errors.Join(errs...)
}

// madeOnHost reports whether a link is of a kind that attachments have on the host.
func madeOnHost(l *kernel.Link) bool { return l.Kind == "veth" || l.Kind == "ifb" }

// derivedName reports whether a link has such a name as kernel.LinkName gives to its kind.
func derivedName(l *kernel.Link) bool {
	hash, ok := strings.CutPrefix(l.Name, l.Kind)
	return ok && len(hash) == 11 && strings.Trim(hash, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

func doomedGroup(network string) uint32 { return kernel.LinkGroup(network) ^ 1<<24 }

// sweepPorts takes somebody else's links off the bridges that attachments put them on. Their records are the
// caller's to forget.
func sweepPorts(w *kernel.World, network string, keep func(owner [8]byte) bool) error {
	records, err := decoded[ports](w.Memory.Records(portRecord, network))
	errs := []error{err}
	for owner, ours := range records {
		if keep(owner) {
			continue
		}
		for link, master := range ours {
			errs = append(errs, detach(w, link, master))
		}
	}
	return errors.Join(errs...)
}
