package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"runtime/debug"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/internal/dhcp/rpc"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/record"
	"github.com/fairlead-cni/fairlead/spec"
)

// Serve answers calls on a socket until ctx ends.
func (d *Daemon) Serve(ctx context.Context, l net.Listener) error {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		conn, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		case err != nil: // too many files are open: others have to end first
			slog.Error("accept", "error", err)
			t := time.NewTimer(100 * time.Millisecond)
			select {
			case <-ctx.Done():
			case <-t.C:
			}
			continue
		}
		d.group.Go(func() {
			serve := func() (err error) {
				defer guard("read a call", &err)
				return rpc.Serve(d.ctx, conn, d.handle)
			}
			if err := serve(); err != nil && d.ctx.Err() == nil {
				slog.Warn("a connection was refused", "reason", err)
			}
		})
	}
}

// guard converts a panic to an error and logs its stack, so that a mistake in one call or one lease does not affect
// others.
func guard(doing string, err *error) {
	if p := recover(); p != nil {
		slog.Error("a mistake of the program", "doing", doing, "panic", p, "stack", string(debug.Stack()))
		*err = spec.Errorf(spec.CodeInternal, "%s: internal error of the daemon, see its log: %v", doing, p)
	}
}

func (d *Daemon) handle(ctx context.Context, method string, args rpc.Question) (reply any, err error) {
	defer guard(method, &err)
	switch method {
	case rpc.Allocate:
		q, err := ask(args.Args, "ADD")
		if err != nil {
			return nil, err
		}
		if q.ipam.IPv6 == dhcp.SLAAC {
			return nil, spec.Errorf(spec.CodeConfig,
				"ipam.ipv6: %q: the reference plugins fail if the kernel has already added the address; use "+
					"Fairlead's plugins, or \"dhcpv6\"", q.ipam.IPv6)
		}
		res, err := d.add(ctx, q)
		if err != nil {
			return nil, err
		}
		// Nor do they take a route that is there already, as those that a router gave are.
		res.Routes = slices.DeleteFunc(res.Routes, func(r spec.Route) bool { return r.Dst.Addr().Is6() })
		return rpc.NewResult(res), nil
	case rpc.Release:
		q, err := ask(args.Args, "DEL")
		if err != nil {
			return nil, err
		}
		return struct{}{}, d.del(ctx, q.owner)
	case rpc.Ask:
		out, err := d.answer(ctx, args)
		if err != nil {
			e := document(err)
			return rpc.Reply{Code: uint(e.Code), Message: e.Error()}, nil
		}
		return rpc.Reply{Document: out}, nil
	}
	return nil, rpc.ErrUnknown(method)
}

// document maps the daemon's own errors to codes of the protocol.
func document(err error) *spec.Error {
	for _, c := range []struct {
		cause error
		code  spec.Code
	}{
		{kernel.ErrNotNamespace, spec.CodeEnvironment},
		{kernel.ErrNoNamespace, spec.CodeEnvironment},
		{context.Canceled, spec.CodeTryAgain},
		{context.DeadlineExceeded, spec.CodeTryAgain},
	} {
		if errors.Is(err, c.cause) {
			return spec.AsError(err, c.code)
		}
	}
	return spec.AsError(err, spec.CodeInternal)
}

func (d *Daemon) answer(ctx context.Context, asked rpc.Question) ([]byte, error) {
	if asked.Verb == "LS" {
		return json.Marshal(d.list())
	}
	q, err := ask(asked.Args, asked.Verb)
	if err != nil {
		return nil, err
	}
	switch asked.Verb {
	case "ADD":
		res, err := d.add(ctx, q)
		if err != nil {
			return nil, err
		}
		return res.Encode(spec.Newest)
	case "CHECK":
		return nil, d.check(q)
	case "DEL":
		return nil, d.del(ctx, q.owner)
	case "GC":
		return nil, d.sweep(ctx, q.conf.Name, q.conf.ValidAttachments)
	case "STATUS":
		return nil, d.status()
	case Adopt:
		return nil, d.adopt(ctx, q)
	}
	return nil, spec.Errorf(spec.CodeUnsupported, "the daemon does not know the verb %q", asked.Verb)
}

// status reports whether the daemon could store a lease.
func (d *Daemon) status() error {
	if err := (record.Store{Dir: d.store.dir}).Writable(); err != nil {
		return spec.Errorf(spec.CodeUnavailable, "%w", err)
	}
	return nil
}
