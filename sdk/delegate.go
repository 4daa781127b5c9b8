package sdk

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
)

// A delegate is the IPAM plugin of a call (clauses I1 to I4).
type delegate interface {
	add(context.Context) (*spec.Result, error)
	check(context.Context) error
	del(context.Context) error
	gc(context.Context) error
	status(context.Context) error
	needsLink() bool // its DEL works through the container's link, so it comes first
}

// newDelegate finds the IPAM plugin in CNI_PATH. Where that is this very program, nothing is executed.
func (c *call) newDelegate() (delegate, error) {
	typ := c.conf.IPAMType
	path, err := invoke.Find(typ, filepath.SplitList(c.env.Path))
	for _, p := range c.all {
		if p.Name != typ {
			continue
		}
		if !p.Allocates() { // to execute it would be to execute itself again and again
			if verb := c.env.Command; verb == "DEL" || verb == "GC" {
				return nil, nil // it can have given nothing
			}
			return nil, spec.Errorf(spec.CodeConfig,
				"ipam.type: %q: makes interfaces and gives no addresses; name an IPAM plugin, such as host-local", typ)
		}
		if errors.Is(err, invoke.ErrNotFound) || err == nil && sameProgram(path) {
			return c.newInside(p)
		}
	}
	if err != nil {
		return nil, err
	}
	return &outside{path: path, c: c}, nil
}

// inside is an allocator of this program, called without executing it.
type inside struct {
	ipam.Allocator
	c *call
}

func (c *call) newInside(p Plugin) (delegate, error) {
	r, err := p.NewRequest(c.r.verb, c.r.Owner, c.r.Netns, c.conf, c.env.args)
	if err != nil {
		return nil, err
	}
	a, unknown, err := p.open(c.conf, r)
	if err != nil {
		return nil, err
	}
	// Which namespace an owner had, an interface plugin of ours has just written down; where another's asks, it may
	// have attached an owner anew that ours had before.
	if l, ok := a.(ipam.Ledger); ok && c.p.role == makesLinks {
		l.Judge(Vanished)
	}
	return inside{a, c}, report(c.conf, c.r.verb, unknown)
}

// step is what a call of the allocator is in the line of the call that it is part of.
func (i inside) step(ctx context.Context) (end func()) {
	if i.c.p.role == allocates {
		return func() {}
	}
	return plan.Step(ctx, named("ipam "+i.c.conf.IPAMType))
}

func (i inside) add(ctx context.Context) (*spec.Result, error) {
	defer i.step(ctx)()
	got, err := i.Allocate(ctx, i.c.r.Owner)
	if l, ok := i.Allocator.(ipam.Witness); ok {
		i.c.r.Ledger = l.Since()
	}
	return got, err
}
func (i inside) check(ctx context.Context) error {
	defer i.step(ctx)()
	return i.Verify(ctx, i.c.r.Owner, i.c.r.Prev)
}

func (i inside) del(ctx context.Context) error {
	defer i.step(ctx)()
	return i.Release(ctx, i.c.r.Owner)
}

func (i inside) gc(ctx context.Context) error {
	defer i.step(ctx)()
	return i.Sweep(ctx, i.c.conf.Name, i.c.valid())
}

func (i inside) status(ctx context.Context) error {
	defer i.step(ctx)()
	return i.Status(ctx, i.c.conf.Name)
}

func (i inside) needsLink() bool {
	_, ok := i.Allocator.(ipam.Linked)
	return ok
}

// Room is how many addresses the configuration's IPAM plugin, or p itself, has left for the network, and of
// how many. Ok is false where that is another program, or one that cannot count.
func (p Plugin) Room(ctx context.Context, all []Plugin, conf *spec.Conf) (free, size ipam.Count, ok bool, err error) {
	for _, q := range append([]Plugin{p}, all...) {
		if !q.Allocates() || q.Name != conf.IPAMType && q.Name != conf.Type {
			continue
		}
		r, err := q.NewRequest("STATUS", spec.Owner{Network: conf.Name}, "", conf, nil)
		if err != nil {
			return free, size, false, err
		}
		a, _, err := q.open(conf, r)
		if err != nil {
			return free, size, false, err
		}
		if c, can := a.(ipam.Roomer); can {
			free, size, err = c.Room(ctx, conf.Name)
			return free, size, err == nil, err
		}
	}
	return free, size, false, nil
}

// Ledger is where the leases of a network of this configuration are kept, if p is the IPAM plugin that it asks, and its
// leases can be looked at. Where lax is set, what is wrong with the configuration is as good as absent.
func (p Plugin) Ledger(conf *spec.Conf, lax bool) (ipam.Ledger, error) {
	if !p.Allocates() || p.Name != conf.IPAMType && p.Name != conf.Type {
		return nil, nil
	}
	verb := "STATUS"
	if lax {
		verb = "DEL"
	}
	r, err := p.NewRequest(verb, spec.Owner{Network: conf.Name}, "", conf, nil)
	if err != nil {
		return nil, err
	}
	a, _, err := p.open(conf, r)
	if err != nil {
		return nil, err
	}
	l, ok := a.(ipam.Ledger)
	if ok {
		l.Judge(Vanished)
	}
	return l, nil
}

// outside is somebody else's program.
type outside struct {
	path string
	c    *call
}

func (o *outside) run(ctx context.Context, verb string) ([]byte, error) {
	e := o.c.env
	e.Command = verb
	call := e.call(e.stdin)
	call.Network, call.Type, call.Stderr, call.Delegate = o.c.conf.Name, o.c.conf.IPAMType, e.stderr, true
	defer plan.Step(ctx, named("ipam "+o.c.conf.IPAMType))()
	return invoke.Run(ctx, o.path, call)
}

func (o *outside) add(ctx context.Context) (*spec.Result, error) {
	out, err := o.run(ctx, "ADD")
	if err == nil {
		var res *spec.Result
		if res, err = spec.DecodeResult(out, o.c.conf.CNIVersion); err == nil {
			return res, nil
		}
	}
	// Who knows how far it came (clause I3). An allocator of this program fails as a whole.
	undo, stop := undoing(ctx)
	defer stop()
	return nil, errors.Join(err, o.del(undo))
}

func (o *outside) quiet(ctx context.Context, verb string) error {
	_, err := o.run(ctx, verb)
	return err
}

func (o *outside) check(ctx context.Context) error  { return o.quiet(ctx, "CHECK") }
func (o *outside) del(ctx context.Context) error    { return o.quiet(ctx, "DEL") }
func (o *outside) gc(ctx context.Context) error     { return o.quiet(ctx, "GC") }
func (o *outside) status(ctx context.Context) error { return o.quiet(ctx, "STATUS") }
func (o *outside) needsLink() bool                  { return o.c.conf.IPAMType == "dhcp" }

// sameProgram reports whether the file at path is the program that runs: the same inode, or a copy of it.
// The head of a Go program holds its build ID, which is a hash of all that went into it.
func sameProgram(path string) bool {
	const self = "/proc/self/exe"
	a, err := os.Stat(path)
	if err != nil {
		return false
	}
	b, err := os.Stat(self)
	if err != nil {
		return false
	}
	if os.SameFile(a, b) {
		return true
	}
	if a.Size() != b.Size() {
		return false
	}
	x, xerr := head(path)
	y, yerr := head(self)
	return xerr == nil && yerr == nil && bytes.Equal(x, y)
}

func head(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, 8192)
	n, err := f.Read(b)
	return b[:n], err
}
