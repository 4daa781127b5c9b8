// Package dhcp gets a container's addresses from a DHCP server on the container's link. A daemon on this host asks the
// server and renews the lease.
package dhcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/internal/dhcp/rpc"
	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// Plugin is the dhcp plugin.
var Plugin = sdk.Allocator("dhcp", "gets addresses from a DHCP server on the container's link", open)

type conf struct {
	IPAM dhcp.Conf `json:"ipam"`
}

func open(c conf, r *sdk.Request) (ipam.Allocator, error) {
	netns, err := absolute(r.Netns)
	if err != nil {
		return nil, err
	}
	l := leases{conf: c.IPAM, version: r.Version,
		args: rpc.Args{ContainerID: r.ContainerID, Netns: netns, IfName: r.IfName, Args: r.Args()}}
	if l.args.StdinData, err = r.Document(); err != nil {
		return l, err
	}
	l.wanted, err = c.IPAM.Wanted(r.Owner, l.args.Args)
	return l, err
}

func absolute(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	return filepath.Abs(path)
}

// warnOfRoutes says which configured routes the container gets no address for.
func (l leases) warnOfRoutes(network string) {
	for i, rt := range l.conf.Routes {
		if !slices.ContainsFunc(l.wanted,
			func(w dhcp.Wanted) bool { return (w.Protocol == dhcp.DHCPv4) == rt.Dst.Addr().Is4() }) {
			slog.Warn("a route is left out: the container gets no address of its family", "network", network, "key",
				fmt.Sprintf("ipam.routes[%d]", i), "dst", rt.Dst)
		}
	}
}

// leases are the daemon's.
type leases struct {
	conf    dhcp.Conf
	version spec.Version
	args    rpc.Args
	wanted  []dhcp.Wanted
}

// NeedsLink implements ipam.Linked: a lease is given back over the link.
func (l leases) NeedsLink() {}

// Bounds on how long the daemon may take. It gives up on servers before these; they are for one that hangs.
const (
	addLimit = 5 * time.Minute
	delLimit = 15 * time.Second
	askLimit = 20 * time.Second
)

func (l leases) Allocate(ctx context.Context, o spec.Owner) (*spec.Result, error) {
	l.warnOfRoutes(o.Network)
	doc, err := l.ask(ctx, addLimit, "ADD")
	if absent(err) && l.conf.StartDaemon {
		if err := rpc.Start(ctx, l.socket()); err != nil {
			return nil, spec.Errorf(spec.CodeTryAgain, "%w", err)
		}
		doc, err = l.ask(ctx, addLimit, "ADD")
	}
	if unknown(err) {
		return l.foreign(ctx, addLimit)
	}
	if absent(err) {
		err = spec.Errorf(spec.CodeTryAgain, "%w%s", err, absence).WithHint(advice)
	}
	if err != nil {
		return nil, err
	}
	return spec.DecodeResult(doc, spec.Newest)
}

const (
	absence = "; start the daemon that keeps leases"
	advice  = "It does not start by itself: systemctl enable --now cni-dhcp.socket, or `fairlead dhcp daemon`."
)

func (l leases) Verify(ctx context.Context, o spec.Owner, prev *spec.Result) error {
	all := spec.DifferencesIn(l.verify(ctx, prev))
	for i := range all {
		all[i].Kind = ipam.KindLease
	}
	if len(all) == 1 {
		return all[0]
	}
	return all.Err()
}

func (l leases) verify(ctx context.Context, prev *spec.Result) error {
	_, err := l.ask(ctx, askLimit, "CHECK")
	if absent(err) { // which says nothing of the container
		return spec.Errorf(spec.CodeUnavailable, "%w%s", err, absence).WithHint(advice)
	}
	if !unknown(err) {
		return err
	}
	// Another daemon's: to be asked for a lease that it has, it answers with it, unless it has lost it, and then maybe
	// not.
	res, err := l.foreign(ctx, askLimit)
	if err != nil {
		return err
	}
	var errs []error
	for _, ip := range res.IPs {
		if prev != nil && !slices.ContainsFunc(prev.IPs, func(p spec.IP) bool { return p.Address == ip.Address }) {
			errs = append(errs, spec.DiffersBy("address", "the lease now has the address %v, which prevResult lacks",
				ip.Address))
		}
	}
	return errors.Join(errs...)
}

func (l leases) Release(ctx context.Context, o spec.Owner) (err error) {
	// The daemon is told no more than whose lease it is, which no length hinders.
	l.args.StdinData, err = json.Marshal(map[string]any{"cniVersion": l.version, "name": o.Network, "type": "dhcp",
		"ipam": map[string]string{"type": "dhcp"}})
	if err != nil {
		return err
	}
	reason := l.end(ctx)
	if !absent(reason) {
		return reason
	}
	// There is no daemon to tell; the next one will be told.
	left, err := dhcp.LeaveNote(dhcp.StateDir, o)
	noRoom := errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
	if err != nil && !noRoom { // DEL makes room, and the lease ends with its link
		return spec.Errorf(spec.CodeIO, "leave a note for the DHCP daemon: %w", err)
	}
	if err := l.end(ctx); !absent(err) { // it may have looked for notes before there was this one
		return err
	}
	if left {
		slog.Warn("the lease is not released: the server keeps it until it expires", "owner", o, "reason", reason)
	}
	return nil
}

// end asks the daemon to release the leases.
func (l leases) end(ctx context.Context) error {
	_, err := l.ask(ctx, delLimit, "DEL")
	if unknown(err) {
		ctx, cancel := context.WithTimeout(ctx, delLimit)
		defer cancel()
		err = rpc.Call(ctx, l.socket(), rpc.Release, l.args, &struct{}{})
	}
	return err
}

func (l leases) Sweep(ctx context.Context, network string, valid []spec.Owner) error {
	_, err := l.ask(ctx, delLimit, "GC")
	if unknown(err) || absent(err) {
		return nil // who is not there sweeps when it comes
	}
	return err
}

func (l leases) Status(ctx context.Context, network string) error {
	_, err := l.ask(ctx, askLimit, "STATUS")
	switch {
	case unknown(err):
		return nil
	case absent(err) && l.conf.StartDaemon:
		return nil
	case absent(err):
		return spec.Errorf(spec.CodeUnavailable, "%w%s", err, absence).WithHint(advice)
	case err != nil:
		return spec.Errorf(spec.CodeUnavailable, "%w", err)
	}
	return nil
}

func (l leases) socket() string { return l.conf.Socket(rpc.DefaultSocket) }

// ask asks our own daemon.
func (l leases) ask(ctx context.Context, limit time.Duration, verb string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var r rpc.Reply
	if err := rpc.Call(ctx, l.socket(), rpc.Ask, rpc.Question{Verb: verb, Args: l.args}, &r); err != nil {
		return nil, failed(err)
	}
	if r.Code != 0 {
		return nil, &spec.Error{Code: spec.Code(r.Code), Msg: r.Message}
	}
	return r.Document, nil
}

// foreign has any daemon that speaks the reference's protocol give a lease, which is one of IPv4. It does not know of
// routes in the configuration.
func (l leases) foreign(ctx context.Context, limit time.Duration) (*spec.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var r rpc.Result
	if err := rpc.Call(ctx, l.socket(), rpc.Allocate, l.args, &r); err != nil {
		return nil, failed(err)
	}
	res := r.Spec()
	for _, w := range l.wanted {
		if w.Protocol != dhcp.DHCPv4 {
			continue
		}
		lease := dhcp.Lease{Routes: res.Routes}
		for _, ip := range res.IPs {
			lease.Addresses, lease.Gateway = append(lease.Addresses, dhcp.Address{Prefix: ip.Address}), ip.Gateway
		}
		res.Routes = w.Ask.Complete(&lease, 0).Routes
		for i := range res.Routes {
			res.Routes[i].Priority = cmp.Or(res.Routes[i].Priority, l.conf.Priority)
		}
	}
	return res, nil
}

// failed returns the error of a call of the daemon. Without an answer, the daemon has ended or hangs: try again later.
func failed(err error) error {
	err = fmt.Errorf("ask the DHCP daemon: %w", err)
	if errors.As(err, new(rpc.Error)) {
		return err
	}
	return spec.Errorf(spec.CodeTryAgain, "%w", err)
}

// unknown reports whether the daemon is another one, which has the reference's methods alone.
func unknown(err error) bool {
	var e rpc.Error
	return errors.As(err, &e) && e.Unknown()
}

// absent reports whether no daemon listens.
func absent(err error) bool {
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED)
}
