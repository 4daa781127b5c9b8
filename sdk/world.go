package sdk

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/filter/policy"
	"github.com/fairlead-cni/fairlead/resource/link"
)

// openHost opens the host's namespace, unless another call of the site has opened it.
func (c *call) openHost() error {
	if c.w.Host != nil {
		return nil
	}
	host, err := kernel.Open("")
	if err != nil {
		return err
	}
	c.w.Host = host
	return nil
}

// filesOfAdd is how many files an ADD may have open at a time beside the namespaces, with those of the programs that it
// executes. The longest chain has had 18.
const filesOfAdd = 24

// openWorld opens both namespaces for ADD and CHECK. It refuses the host's own namespace as the container's, before
// anything is changed.
func (c *call) openWorld() error {
	if err := c.openHost(); err != nil {
		return err
	}
	if c.w.Container != nil {
		return nil
	}
	cont, err := kernel.Open(c.r.Netns)
	if err != nil {
		return fmt.Errorf("CNI_NETNS: %w", err)
	}
	if !c.env.here {
		cont.Stranded = c.stranded
	}
	same, err := kernel.Same(c.w.Host, cont)
	if same && err == nil && !c.env.netnsOverride() {
		err = fmt.Errorf("CNI_NETNS %s: %w", c.r.Netns, kernel.ErrHostNamespace)
	}
	if err != nil {
		cont.Close()
		return err
	}
	if c.env.Command == "ADD" {
		// Go ends a program that lacks a file for a timer, and then nothing is rolled back.
		if err := cont.FilesLeft(filesOfAdd); err != nil {
			cont.Close()
			return err
		}
	}
	c.w.Container = cont
	return nil
}

// stranded ends the program with its error document if the thread that answers the call cannot leave the container's
// namespace, because all further changes would affect the container instead of the host. The DEL that follows removes
// what ADD made.
func (c *call) stranded(err error) {
	os.Stdout.Write(document(err).Encode(c.conf.CNIVersion.Or010()))
	c.end(err)
	os.Exit(1)
}

// remember records the identity of the container's namespace for DEL. Restore undoes this: an ADD that is refused
// because the attachment exists must not replace the record of its namespace.
func (c *call) remember() (restore func() error, err error) {
	var was resource.Made
	known, err := c.w.Store.Get(resource.MadeRecord, c.r.Owner, &was)
	if err != nil {
		return func() error { return nil }, err
	}
	id, err := c.w.Container.Identity()
	if err != nil {
		return func() error { return nil }, err
	}
	if restore = c.forget; known {
		restore = func() error { return c.w.Store.Put(resource.MadeRecord, c.r.Owner, was) }
	}
	return restore, c.w.Store.Put(resource.MadeRecord, c.r.Owner,
		resource.Made{Identity: id, Path: c.w.Container.Path, Owner: c.r.Owner, Ranges: c.r.Ranges})
}

func (c *call) forget() error {
	if c.p.role != makesLinks {
		return nil
	}
	return errors.Join(c.w.Store.Delete(resource.MadeRecord, c.r.Owner),
		c.w.Store.Delete(resource.HandedRecord, c.r.Owner))
}

// openContainerForDel opens the container's namespace if it is still the one that ADD saw. If the path leads nowhere,
// to the host's namespace or to that of another container (such as a reused /proc/PID/ns/net), the namespace counts as
// gone and nothing in it is changed.
func (c *call) openContainerForDel() error {
	if c.r.Netns == "" || c.w.Container != nil {
		return nil
	}
	cont, err := kernel.Open(c.r.Netns)
	if errors.Is(err, kernel.ErrNoNamespace) || errors.Is(err, kernel.ErrNotNamespace) {
		slog.Info("the container's namespace is gone", "netns", c.r.Netns)
		return nil
	}
	if err != nil {
		return fmt.Errorf("CNI_NETNS: %w", err)
	}
	if !c.env.here {
		cont.Stranded = c.stranded
	}
	var was kernel.Identity
	isHost, herr := kernel.Same(c.w.Host, cont)
	known, err := c.w.Store.Get(resource.MadeRecord, c.r.Owner, &was)
	same := true
	if known && err == nil {
		same, err = cont.Is(was)
	}
	switch {
	case err != nil || herr != nil:
		cont.Close()
		return errors.Join(err, herr)
	case isHost && !c.env.netnsOverride(), !same:
		slog.Warn("CNI_NETNS is not the container's namespace any more; only the host is cleaned up", "netns",
			c.r.Netns)
		cont.Close()
		return nil
	}
	c.w.Container = cont
	return nil
}

// hostSide returns the names of the interfaces in Prev that have no sandbox.
func (r *Request) hostSide() []string {
	var names []string
	if r.Prev != nil {
		for _, f := range r.Prev.Interfaces {
			if f.Sandbox == "" {
				names = append(names, f.Name)
			}
		}
	}
	return names
}

// lookUpHostLinks asks the kernel about the links on the host that Prev lists, and about the one that leads to the
// container.
func (c *call) lookUpHostLinks() (err error) {
	if c.seen != nil {
		c.r.Links = *c.seen
		return nil
	}
	c.r.Links = Links{}
	if c.r.verb == "CHECK" {
		var made resource.Made
		if _, err := c.w.Store.Get(resource.MadeRecord, c.r.Owner, &made); err != nil {
			return err
		}
		c.r.ranges = made.Ranges
	}
	if c.r.InContainer() {
		if c.r.Peer, err = resource.LookBehind(c.w, c.r.IfName); err != nil {
			return err
		}
		if c.r.Peer != nil && c.r.Peer.Master == "" && c.r.verb == "CHECK" {
			if c.r.Policed, err = policy.BridgeOf(c.w, c.r.Owner); err != nil {
				return err
			}
		}
	}
	for _, name := range c.r.hostSide() {
		l, err := resource.Look(c.w, name, c.r.IfName)
		if err == nil && l == nil && c.r.verb == "CHECK" {
			var now string
			if now, err = link.Renamed(c.w, name, c.r.Owner); now != "" {
				if l, err = resource.Look(c.w, now, c.r.IfName); l != nil {
					l.Was = name
				}
			}
		}
		switch {
		case err != nil:
			return err
		case l != nil:
			c.r.HostLinks = append(c.r.HostLinks, *l)
		default:
			c.r.Missing = append(c.r.Missing, name)
		}
	}
	c.seen = &c.r.Links
	return nil
}
