// Package restore is what package sdk and a repair have in common: which program an attachment belongs to, its
// namespaces, and how the resources of its plan are repaired.
package restore

import (
	"errors"
	"fmt"

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
