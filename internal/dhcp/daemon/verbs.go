package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/internal/dhcp/rpc"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
)

// A question is a decoded call of a plugin.
type question struct {
	rpc.Args
	conf  *spec.Conf
	ipam  dhcp.Conf
	owner spec.Owner
}

func ask(a rpc.Args, verb string) (q question, err error) {
	q.Args = a
	q.conf, err = spec.ParseConf(a.StdinData)
	if err != nil && (q.conf == nil || verb != "DEL") {
		return q, err
	}
	q.owner = spec.Owner{Network: q.conf.Name, ContainerID: a.ContainerID, IfName: a.IfName}
	raw, ok := q.conf.Object.Get("ipam")
	if !ok {
		raw = []byte("{}")
	}
	if err := json.Unmarshal(raw, &q.ipam); err != nil && verb != "DEL" && verb != "GC" {
		return q, spec.Errorf(spec.CodeDecode, "ipam: %w", err)
	}
	return q, nil
}

// probes reports whether the interface plugin checks for conflicts. A conflict costs the container its address, so the
// daemon must check first in order to tell the server.
func (q question) probes() bool {
	raw, ok := q.conf.Object.Get("conflictDetection")
	return ok && string(raw) == `"probe"`
}

// add gets the leases of an owner. Leases that it already has are returned again.
func (d *Daemon) add(ctx context.Context, q question) (*spec.Result, error) {
	wanted, err := q.ipam.Wanted(q.owner, q.Args.Args)
	if err != nil {
		return nil, err
	}
	done, err := d.lockOwner(ctx, q.owner)
	if err != nil {
		return nil, err
	}
	defer done()
	dhcp.DropNote(d.store.dir, q.owner) // of a DEL that was killed
	ns, err := d.open(q.Netns)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	id, err := ns.Identity()
	if err != nil {
		return nil, err
	}
	link, err := ready(ctx, ns, q.IfName)
	if err != nil {
		return nil, err
	}
	for _, k := range d.of(q.owner) {
		k.mu.Lock()
		same := k.rec.Identity == id && k.rec.Index == link.Index && k.lost == nil
		k.mu.Unlock()
		if !same {
			d.end(ctx, k)
		}
	}
	leases, err := d.leases(ctx, wanted, q, id, link)
	if err != nil {
		for _, k := range d.of(q.owner) {
			d.end(context.WithoutCancel(ctx), k)
		}
		return nil, err
	}
	res := &spec.Result{}
	for _, l := range leases {
		l.Result(res, q.ipam.Priority)
	}
	return res, nil
}

// leases gets all wanted leases concurrently, because each waits for other servers.
func (d *Daemon) leases(ctx context.Context, wanted []dhcp.Wanted, q question, id kernel.Identity,
	link reached) ([]*dhcp.Lease, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	got, errs := make([]*dhcp.Lease, len(wanted)), make([]error, len(wanted))
	var group sync.WaitGroup
	for i, w := range wanted {
		group.Go(func() {
			a := d.broadcast(w.Ask, link)
			a.Probe = q.probes()
			if got[i], errs[i] = d.lease(ctx, w.Protocol, a, q, id, link); errs[i] != nil {
				cancel()
			}
		})
	}
	group.Wait()
	// What the first failure ended is no failure of its own.
	rest := slices.DeleteFunc(slices.Clone(errs),
		func(err error) bool { return err == nil || errors.Is(err, context.Canceled) })
	if len(rest) == 0 {
		rest = errs
	}
	return got, errors.Join(rest...)
}

// broadcast makes servers broadcast their answers if that is necessary, as on an ipvlan, where all links have the same
// MAC.
func (d *Daemon) broadcast(a dhcp.Ask, link reached) dhcp.Ask {
	a.Broadcast = a.Broadcast || d.Broadcast || link.kind == "ipvlan"
	return a
}

// lease gets a lease of one protocol and keeps it.
func (d *Daemon) lease(ctx context.Context, name string, a dhcp.Ask, q question, id kernel.Identity,
	link reached) (_ *dhcp.Lease, err error) {
	defer guard("get a lease", &err)
	for _, k := range d.of(q.owner) {
		k.mu.Lock()
		l, same := k.rec.Lease, k.rec.Protocol == name
		k.mu.Unlock()
		if same {
			return l, nil
		}
	}
	proto, err := d.protocol(name)
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, d.Patience)
	defer cancel()
	l, err := proto.Acquire(limited, link.Link, a)
	l = a.Complete(l, link.MTU)
	switch {
	case ctx.Err() != nil:
		err = errors.Join(err, ctx.Err())
	case errors.Is(err, dhcp.ErrNoServer) && name == dhcp.DHCPv4:
		return nil, spec.Errorf(spec.CodeTryAgain, "%w within %v: there is no server, or its pool is empty", err,
			d.Patience)
	case errors.Is(err, dhcp.ErrNoServer):
		return nil, spec.Errorf(spec.CodeTryAgain, "%w (for %v)", err, d.Patience)
	case errors.Is(err, dhcp.ErrRefused), errors.Is(err, dhcp.ErrEmpty):
		return nil, spec.Errorf(spec.CodeTryAgain, "%w", err)
	}
	if err == nil {
		err = d.keep(proto, a, q, id, link, l)
	} else if l != nil { // the caller is gone and will not know of it
		err = errors.Join(err, d.giveBack(proto, link, leaseFile{Ask: a, Lease: l}))
	}
	if err != nil {
		return nil, err
	}
	return l, nil
}

// keep stores a lease and keeps it from now on. A lease that cannot be stored is released.
func (d *Daemon) keep(proto dhcp.Protocol, a dhcp.Ask, q question, id kernel.Identity, link reached,
	l *dhcp.Lease) error {
	r := leaseFile{Format: format, Protocol: proto.Name(), Ask: a, Netns: q.Netns, Identity: id, Index: link.Index,
		Metric: q.ipam.Priority, Lease: l}
	r.stamp()
	if err := d.store.save(r); err != nil { // the file may be there, and only its directory not on the disk
		return errors.Join(err, d.store.remove(a.Owner, r.Protocol), d.giveBack(proto, link, r))
	}
	k := d.newKeeper(proto, r)
	var err error
	if k.number, err = rtnl.AssignNSID(d.host, link.NS); err != nil {
		slog.Warn("the link cannot be monitored", "owner", q.owner, "error", err)
	}
	slog.Info("a lease", "owner", q.owner, "protocol", proto.Name(), "addresses", l.Prefixes(), "server", l.Server.Addr,
		"for", lasting(l.Valid))
	d.start(k, time.Time{})
	return nil
}

// lasting describes the duration of a lease in words.
func lasting(d time.Duration) string {
	if d == dhcp.Forever {
		return "ever"
	}
	return d.String()
}

// giveBackLimit limits how long a RELEASE may take. Only DHCPv6 servers answer it.
const giveBackLimit = 3 * time.Second

func (d *Daemon) giveBack(proto dhcp.Protocol, link reached, r leaseFile) (err error) {
	defer guard("give a lease back", &err)
	if !link.up {
		return fmt.Errorf("link %s is down", link.Name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), giveBackLimit)
	defer cancel()
	if taken(link, r.Lease) {
		slog.Warn("another machine on the link has the address of a lease; the server is told", "owner",
			r.Ask.Owner,
			"addresses", r.Lease.Prefixes())
		return proto.Decline(ctx, link.Link, r.Ask, r.Lease)
	}
	return proto.Release(ctx, link.Link, r.Ask, r.Lease)
}

// end stops a keeper, releases its lease if possible, and forgets it. If the file of the lease cannot be removed, the
// keeper stays, so that the next call tries again.
func (d *Daemon) end(_ context.Context, k *keeper) error {
	k.stop()
	k.mu.Lock()
	r, lost := k.rec, k.lost
	k.lost = errEnded
	k.mu.Unlock()
	if lost == nil {
		link, err := k.reach()
		if err == nil {
			err = d.giveBack(k.proto, link, r)
			link.NS.Close()
		}
		if err != nil {
			slog.Warn("the lease is not released: the server keeps it until it expires", "owner", r.Ask.Owner,
				"reason", err)
		} else {
			slog.Info("a lease was given back", "owner", r.Ask.Owner, "protocol", r.Protocol, "addresses",
				r.Lease.Prefixes())
		}
	}
	if err := d.store.remove(r.Ask.Owner, r.Protocol); err != nil {
		return err
	}
	d.forget(k)
	return nil
}

// errEnded says that a DEL has ended a lease.
var errEnded = errors.New("a DEL has ended it")

// del releases the leases of an owner. It is not an error if there are none.
func (d *Daemon) del(ctx context.Context, o spec.Owner) error {
	done, err := d.lockOwner(ctx, o)
	if err != nil {
		return err
	}
	defer done()
	var errs []error
	for _, k := range d.of(o) {
		errs = append(errs, d.end(ctx, k))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	dhcp.DropNote(d.store.dir, o)
	return nil
}

// check returns the problems of an owner's leases. It asks no server and does not wait.
func (d *Daemon) check(q question) error {
	ks := d.of(q.owner)
	if len(ks) == 0 {
		return fmt.Errorf("there is no lease of %s", q.owner)
	}
	var errs []error
	for _, k := range ks {
		k.mu.Lock()
		rec, lost, trouble := k.rec, k.lost, k.trouble
		k.mu.Unlock()
		if lost != nil {
			err := fmt.Errorf("lease %s of %v is over: %w", rec.Protocol, rec.Lease.Prefixes(), lost)
			if trouble != nil {
				err = fmt.Errorf("%w; and there is no new one: %w", err, trouble)
			}
			errs = append(errs, err)
			continue
		}
		if q.conf.PrevResult == nil {
			continue
		}
		for _, p := range rec.Lease.Prefixes() {
			if !slices.ContainsFunc(q.conf.PrevResult.IPs, func(ip spec.IP) bool { return ip.Address == p }) {
				errs = append(errs, fmt.Errorf("lease %s: the address is %v now, and prevResult does not have it",
					rec.Protocol, p))
			}
		}
	}
	return errors.Join(errs...)
}

// sweep releases the leases of a network whose attachments are not in valid.
func (d *Daemon) sweep(ctx context.Context, network string, valid []spec.Attachment) error {
	keep := make(map[spec.Attachment]bool, len(valid))
	for _, a := range valid {
		keep[a] = true
	}
	d.mu.Lock()
	owners := map[spec.Owner]bool{}
	for at := range d.keepers {
		if at.owner.Network == network && !keep[spec.Attachment{ContainerID: at.owner.ContainerID,
			IfName: at.owner.IfName}] {
			owners[at.owner] = true
		}
	}
	d.mu.Unlock()
	var errs []error
	for o := range owners {
		errs = append(errs, d.del(ctx, o))
	}
	return errors.Join(errs...)
}
