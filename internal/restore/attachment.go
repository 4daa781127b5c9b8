// Package restore is what package sdk and a repair have in common: which program an attachment belongs to, its
// namespaces, and how the resources of its plan are repaired.
package restore

import (
	"errors"
	"fmt"

	"github.com/fairlead-cni/fairlead/internal/hostview"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/record"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// OpenHost opens the host's namespace, as a World without a container.
func OpenHost() (*kernel.World, error) {
	host, err := kernel.Open("")
	return kernel.NewWorld(host), err
}

// OpenContainer returns host with the namespace of o's container at netns. The caller closes only w.Container. The
// error is kernel.ErrNoNamespace if the namespace no longer exists or is not the one that ADD saw.
func OpenContainer(host *kernel.World, o spec.Owner, netns string) (w *kernel.World, err error) {
	cont, err := host.Host.Enter(netns)
	if errors.Is(err, kernel.ErrNotNamespace) {
		return nil, fmt.Errorf("%s: %w", netns, kernel.ErrNoNamespace)
	} else if err != nil {
		return nil, err
	}
	same, err := kernel.Same(host.Host, cont)
	if same && err == nil {
		err = fmt.Errorf("%s: %w", netns, kernel.ErrHostNamespace)
	}
	if err == nil {
		err = CheckIdentity(host.Store, o, cont)
	}
	if err != nil {
		cont.Close()
		return nil, err
	}
	return &kernel.World{Host: host.Host, Container: cont, Store: host.Store}, nil
}

// Vanished returns a function that says why the container of o has no namespace at netns any more: there is none, or it
// is not the one that ADD saw. The function returns nil if the namespace may exist. Names and inode numbers of
// namespaces are reused, so the identity that an interface plugin of Fairlead recorded is compared. For attachments of
// other plugins only the path counts. Containers are opened from host, if that is not nil.
func Vanished(host *kernel.NS) func(o spec.Owner, netns string) error {
	store := kernel.NewWorld(host).Store
	return func(o spec.Owner, netns string) error {
		if netns == "" {
			return nil
		}
		cont, err := host.Enter(netns)
		switch {
		case errors.Is(err, kernel.ErrNoNamespace) && !kernel.Hidden(netns, err):
			return err
		case err != nil:
			return nil
		}
		defer cont.Close()
		err = CheckIdentity(store, o, cont)
		if errors.Is(err, kernel.ErrNoNamespace) && !hostview.Unseen(netns) {
			return err
		}
		return nil
	}
}

// CheckIdentity returns kernel.ErrNoNamespace if cont is not the namespace that ADD saw.
func CheckIdentity(m record.Store, o spec.Owner, cont *kernel.NS) error {
	var was kernel.Identity
	known, err := m.Get(resource.MadeRecord, o, &was)
	if err != nil || !known {
		return err
	}
	if same, err := cont.Is(was); err != nil || same {
		return err
	}
	return fmt.Errorf("%s is not the namespace that was attached: %w", cont.Path, kernel.ErrNoNamespace)
}

// WasAttached reports whether an interface plugin of this program made o's link in this boot, and no DEL removed it.
func WasAttached(w *kernel.World, o spec.Owner) bool {
	known, err := w.Store.Get(resource.MadeRecord, o, new(kernel.Identity))
	return known && err == nil
}

// HandOver records that o's link belongs to another program from now on, although an interface plugin of this program
// made it. The next ADD takes it back.
func HandOver(w *kernel.World, o spec.Owner) error {
	if err := w.Store.Put(resource.HandedRecord, o, true); err != nil {
		return err
	}
	return w.Store.Delete(resource.MadeRecord, o)
}

// HandedOver reports whether o was handed over in this boot, and neither attached nor deleted by this program since.
func HandedOver(w *kernel.World, o spec.Owner) bool {
	known, err := w.Store.Get(resource.HandedRecord, o, new(bool))
	return known && err == nil && !WasAttached(w, o)
}
