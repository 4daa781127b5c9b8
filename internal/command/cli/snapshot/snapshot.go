// Package snapshot reads what the commands show of this host: the attachments in the cache, and the namespaces of the
// host and of the containers. Commands are views of it. Each part is read when a command first needs it, and once, so
// examinations need no order, and what a command does not show is not read.
package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/repair"
	"github.com/fairlead-cni/fairlead/internal/restore"
	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/spec"
)

// Snapshot is this host as one command sees it. Its methods may be used concurrently.
type Snapshot struct {
	*kernel.World                 // the host, as kernel.OpenView opens it
	All           []attach.Cached // all attachments, or those of one network
	Unread        []error         // problems with other files of the cache

	Holder func(inode uint32) string // names the program that has a socket, see attached.Holders

	mu       sync.Mutex
	gone     map[string]bool // by the file of an attachment in the cache
	vanished func(o spec.Owner, netns string) error
}

// Open is Read. It fails if the cache cannot be read at all, so that nothing is known of attachments.
func Open(network string) (*Snapshot, error) {
	s, err := Read(network)
	if err != nil {
		return nil, err
	}
	if err := attached.Unseen(s.Unread); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Read opens this host, and reads the attachments of a network, or of all networks if it is empty.
func Read(network string) (*Snapshot, error) {
	w, err := Look()
	if err != nil {
		return nil, err
	}
	s := &Snapshot{World: w, gone: map[string]bool{}, vanished: restore.Vanished(w.Host), Holder: attached.Holders()}
	s.All, s.Unread = attached.List(network)
	return s, nil
}

// Look opens this host without its attachments.
func Look() (*kernel.World, error) {
	host, err := kernel.OpenView(func(err error) {
		fmt.Fprintln(os.Stderr, "fairlead:", err)
		os.Exit(app.ExitFailure)
	})
	return kernel.NewWorld(host), err
}

// DryRepairer returns what compares attachments with their plans, and changes nothing.
func (s *Snapshot) DryRepairer(list []attach.Cached) repair.Repairer {
	return repair.Repairer{Runtime: &attach.Runtime{Stderr: io.Discard}, Plugins: plugin.All(),
		Foreign: netconf.Foreign(), External: netconf.Externals(), Now: netconf.Configured, DryRun: true, View: s.World,
		List: func() ([]attach.Cached, []error) { return slices.Clone(list), s.Unread }}
}

// Problems names the files of the cache that cannot be read and may be of the network, or of any if it is empty. It is
// one rule for all commands: they show the rest, and end with exit status 1 instead of 0. A file that a DEL has set
// aside is no attachment: it is named, and does not count.
func (s *Snapshot) Problems(a *app.App, network string) (lines []string) {
	for _, p := range s.Unread {
		u := new(attach.Unread)
		known := errors.As(p, &u)
		aside := known && u.Aside
		if known && !aside && !u.Of(network) {
			continue
		}
		if lines = append(lines, p.Error()); !aside && a.Status == app.ExitOK {
			a.Status = app.ExitFailure
		}
	}
	return lines
}

// On returns the attachments of a network.
func (s *Snapshot) On(network string) []attach.Cached {
	return slices.DeleteFunc(slices.Clone(s.All), func(c attach.Cached) bool { return c.Network != network })
}

// Remembered returns the lists of networks with attached containers that none of these lists defines: they are only in
// the cache.
func (s *Snapshot) Remembered(lists []*spec.List) (all []*spec.List) {
	for _, c := range s.All {
		known := func(l *spec.List) bool { return l.Name == c.Network }
		listed := slices.ContainsFunc(lists, known) || slices.ContainsFunc(all, known)
		if listed || c.Network == attached.LoopbackNetwork || s.Gone(c) {
			continue
		}
		if l := c.AttachedBy(nil); l != nil {
			all = append(all, l)
		}
	}
	return all
}

// Gone reports whether the namespace of an attachment is gone.
func (s *Snapshot) Gone(c attach.Cached) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	is, known := s.gone[c.File]
	if !known {
		vanished := func(c *attach.Cached) bool { return s.vanished(c.Owner(), c.Netns) != nil }
		is = (&attach.Runtime{Vanished: vanished}).Gone(&c)
		s.gone[c.File] = is
	}
	return is
}

// Leases returns the leases of a pool, those of addresses or all.
func (s *Snapshot) Leases(ctx context.Context, p netconf.Pool, of ...netip.Addr) (*ipam.Book, error) {
	p.Ledger.Judge(s.vanished)
	return p.Ledger.Look(ctx, p.Network, of...)
}

// Attachment is an attachment as ls prints it.
type Attachment struct {
	attached.Key
	Name      string         `json:"name,omitempty"` // NAMESPACE/POD, or podman's name
	State     string         `json:"state"`          // alive, gone, unknown
	Addresses []netip.Prefix `json:"addresses"`
}

// Describe returns an attachment with its name, state and addresses.
func (s *Snapshot) Describe(c attach.Cached) Attachment {
	return Attachment{attached.KeyOf(c.Owner(), c.Netns), attached.Name(c), s.State(c), attached.OwnAddresses(c)}
}

// State returns the state of an attachment: alive, gone or unknown.
func (s *Snapshot) State(c attach.Cached) string {
	switch {
	case s.Gone(c):
		return attached.Gone
	case c.Netns == "", c.Hidden():
		return attached.Unknown
	}
	return attached.Alive
}
