// Package daemon keeps DHCP leases: it gets them for containers, renews them, stores them and releases them.
package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	v4 "github.com/fairlead-cni/fairlead/internal/dhcp/v4"
	v6 "github.com/fairlead-cni/fairlead/internal/dhcp/v6"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// Settings has the values of the command line.
type Settings struct {
	HostPrefix string        // before paths of namespaces
	StateDir   string        // before it, HostPrefix
	Broadcast  bool          // have servers broadcast their answers
	Timeout    time.Duration // of one try to renew a lease
	Patience   time.Duration // of all tries to get one
	Resend     time.Duration // the longest pause before a message is sent again
}

// A Daemon keeps leases.
type Daemon struct {
	Settings

	host   *kernel.NS
	store  store
	lock   *os.File
	ctx    context.Context
	cancel context.CancelFunc
	group  sync.WaitGroup

	mu      sync.Mutex
	keepers map[key]*keeper
	busy    map[spec.Owner]chan struct{} // who is being added or deleted
}

type key struct {
	owner    spec.Owner
	protocol string
}

// New starts a daemon with the leases that the previous one stored.
func New(s Settings) (*Daemon, error) {
	d := &Daemon{Settings: s, store: store{filepath.Join(s.HostPrefix, s.StateDir)}, keepers: map[key]*keeper{},
		busy: map[spec.Owner]chan struct{}{}}
	if err := os.MkdirAll(d.store.dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(d.store.dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		pid, _ := io.ReadAll(io.LimitReader(lock, 20))
		lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("another daemon keeps the leases in %s: process %s", d.store.dir,
				strings.TrimSpace(string(pid)))
		}
		return nil, err
	}
	// For people. A full disk does not keep a daemon from starting.
	if err := errors.Join(lock.Truncate(0), second(lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"),
		0))); err != nil {
		slog.Warn("the file with the process ID could not be written", "error", err)
	}
	d.lock = lock
	records, err := d.store.load()
	if err == nil {
		d.host, err = kernel.Open("")
	}
	if err != nil {
		lock.Close()
		return nil, err
	}
	// any question: the netlink library finds its byte order out at the first one, and not for several at once
	_, _ = rtnl.NSID(d.host, d.host)
	d.ctx, d.cancel = context.WithCancel(context.Background())
	var owners []spec.Owner
	for i, r := range records {
		owners = append(owners, r.Ask.Owner)
		// Some hundreds a second, so that servers and this daemon keep up.
		d.resume(r, time.Now().Add(time.Duration(i)*3*time.Millisecond))
	}
	d.takeNotes(owners)
	d.group.Go(func() {
		if err := rtnl.WatchNamespaces(d.host, d.ctx.Done(), d.handleEvent); err != nil {
			slog.Error("links are not watched: that one is gone or back is seen when its lease is to be renewed",
				"error", err)
		}
	})
	return d, nil
}

// takeNotes releases the leases of those containers that were deleted while no daemon ran.
func (d *Daemon) takeNotes(owners []spec.Owner) {
	err := dhcp.TakeNotes(d.store.dir, owners, func(o spec.Owner) {
		slog.Info("deleted while there was no daemon", "owner", o)
		if err := d.del(d.ctx, o); err != nil {
			slog.Error("give a lease back", "owner", o, "error", err)
		}
	})
	if err != nil {
		slog.Error("remove the notes of what was deleted while there was no daemon", "error", err)
	}
}

// Close ends the daemon. The leases stay.
func (d *Daemon) Close() {
	d.cancel()
	d.group.Wait()
	d.host.Close()
	d.lock.Close()
}

func second[T any](_ T, err error) error { return err }

func (d *Daemon) handleEvent(ev rtnl.NamespaceEvent) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, k := range d.keepers {
		k.receive(ev)
	}
}

// protocol returns the protocol with this name.
func (d *Daemon) protocol(name string) (dhcp.Protocol, error) {
	switch name {
	case dhcp.DHCPv4:
		return v4.Client{Max: d.Resend}, nil
	case dhcp.DHCPv6:
		return v6.Client{Max: d.Resend}, nil
	case dhcp.SLAAC:
		return v6.SLAAC{Client: v6.Client{Max: d.Resend}}, nil
	}
	return nil, fmt.Errorf("there is no protocol %q", name)
}

// resume continues to keep a lease that the previous daemon stored.
func (d *Daemon) resume(r leaseFile, when time.Time) {
	proto, err := d.protocol(r.Protocol)
	if err != nil {
		slog.Error("a lease is left alone", "owner", r.Ask.Owner, "reason", err)
		return
	}
	if b := bootID(); b != r.Boot {
		slog.Info("a lease was of an earlier boot, and its namespace is gone with that", "owner", r.Ask.Owner)
		if err := d.store.remove(r.Ask.Owner, r.Protocol); err != nil {
			slog.Error("forget a lease", "owner", r.Ask.Owner, "error", err)
		}
		return
	}
	if !r.awake() {
		slog.Warn("a lease has a time in the future, so its server is asked", "owner", r.Ask.Owner)
	}
	k := d.newKeeper(proto, r)
	k.confirm = true
	if r.Off {
		k.lost = errors.New("the lease expired before the daemon started")
	}
	d.start(k, when)
}

func (d *Daemon) newKeeper(proto dhcp.Protocol, r leaseFile) *keeper {
	return &keeper{d: d, proto: proto, at: key{r.Ask.Owner, r.Protocol}, rec: r, number: -1, up: true,
		done: make(chan struct{}), wake: make(chan struct{}, 1)}
}

func (d *Daemon) start(k *keeper, when time.Time) {
	var ctx context.Context
	ctx, k.cancel = context.WithCancel(d.ctx)
	d.mu.Lock()
	d.keepers[k.at] = k
	d.mu.Unlock()
	d.group.Go(func() { k.run(ctx, when) })
}

// drop forgets a lease that cannot be released, because its link is gone. It removes the file first: a call that
// deletes the owner meanwhile waits for the end of this keeper, and then finds nothing.
func (d *Daemon) drop(k *keeper, why error) {
	if err := d.store.remove(k.at.owner, k.at.protocol); err != nil {
		slog.Error("forget a lease", "owner", k.at.owner, "error", err)
	}
	d.forget(k)
	slog.Info("a lease is dropped; its server has it until it ends", "owner", k.at.owner, "protocol", k.at.protocol,
		"reason", why)
}

// forget removes a keeper from the list.
func (d *Daemon) forget(k *keeper) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.keepers[k.at] == k {
		delete(d.keepers, k.at)
	}
}

// of returns the keepers of an owner.
func (d *Daemon) of(o spec.Owner) (ks []*keeper) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for at, k := range d.keepers {
		if at.owner == o {
			ks = append(ks, k)
		}
	}
	slices.SortFunc(ks, func(a, b *keeper) int {
		return cmp.Compare(a.at.protocol, b.at.protocol)
	})
	return ks
}

// lockOwner waits until no other call adds or deletes the owner.
func (d *Daemon) lockOwner(ctx context.Context, o spec.Owner) (done func(), err error) {
	for {
		d.mu.Lock()
		other, busy := d.busy[o]
		if !busy {
			mine := make(chan struct{})
			d.busy[o] = mine
			d.mu.Unlock()
			return func() {
				d.mu.Lock()
				delete(d.busy, o)
				d.mu.Unlock()
				close(mine)
			}, nil
		}
		d.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, spec.Errorf(spec.CodeTryAgain, "another call for %s is still running: %w", o, ctx.Err())
		}
	}
}
