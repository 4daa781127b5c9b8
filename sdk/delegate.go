package sdk

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/engine"
	"github.com/fairlead-cni/fairlead/internal/restore"
	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/spec"
)

// A delegate is the IPAM plugin of a call (clauses I1 to I4).
type delegate interface {
	verbs
	needsLink() bool // its DEL works through the container's link, so it comes first
}

// verbs are what a runtime may ask: of a plugin with all that belongs to it, or of IPAM alone.
type verbs interface {
	add(context.Context) (*spec.Result, error)
	check(context.Context) error
	del(context.Context) error
	gc(context.Context) error
	status(context.Context) error
}

// newDelegate finds the IPAM plugin in CNI_PATH. If that is this program itself, the allocator is called without
// executing it.
func (c *call) newDelegate() (delegate, error) {
	typ := c.conf.IPAMType
	path, err := invoke.Find(typ, filepath.SplitList(c.env.Path))
	for _, p := range c.all {
		if p.Name != typ {
			continue
		}
		if !p.Allocates() { // to execute it would be to execute itself again and again
			if removes(c.env.Command) {
				return nil, nil // it can have given nothing
			}
			return nil, spec.Errorf(spec.CodeConfig,
				"ipam.type: %q: is not an IPAM plugin, because it makes interfaces; want an IPAM plugin, such as "+
					"host-local", typ)
		}
		if errors.Is(err, invoke.ErrNotFound) || err == nil && c.own(path) {
			return c.newInside(p)
		}
	}
	if err != nil {
		return nil, err
	}
	return &outside{path: path, c: c}, nil
}

// inside is an allocator of this program, which is called without executing a program.
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
		l.Judge(restore.Vanished(nil))
	}
	return inside{a, c}, report(c.conf, c.r.verb, unknown)
}

// step begins the allocator's step in the log line of the call.
func (i inside) step(ctx context.Context) (end func()) {
	if i.c.p.role == allocates {
		return func() {}
	}
	return engine.Step(ctx, named("ipam "+i.c.conf.IPAMType))
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
	return i.Sweep(ctx, i.c.conf.Name, validOwners(i.c.conf.Name, i.c.conf.ValidAttachments))
}

func (i inside) status(ctx context.Context) error {
	defer i.step(ctx)()
	return i.Status(ctx, i.c.conf.Name)
}

func (i inside) needsLink() bool {
	_, ok := i.Allocator.(ipam.Linked)
	return ok
}

// Room returns how many addresses the IPAM plugin of the configuration, or p itself, has free for the network, and how
// many it has in all. Ok is false if the IPAM plugin is another program or cannot count.
func (p Plugin) Room(ctx context.Context, all []Plugin, conf *spec.Conf) (free, size ipam.Count, ok bool, err error) {
	a, err := statusAllocator(append([]Plugin{p}, all...), conf)
	if c, can := a.(ipam.Roomer); can {
		free, size, err = c.Room(ctx, conf.Name)
		ok = err == nil
	}
	return free, size, ok, err
}

// Forecast returns what the IPAM plugin of the configuration might allocate, and from which pools. The result is nil if
// the IPAM plugin is not among all, or does not know.
func Forecast(all []Plugin, conf *spec.Conf) (*spec.Result, []ipam.Set) {
	a, _ := statusAllocator(all, conf)
	if f, knows := a.(ipam.Forecaster); knows {
		return f.Forecast()
	}
	return nil, nil
}

// Ledger opens the leases of a network for inspection, if p is the IPAM plugin of conf and its leases can be inspected.
// If lax is set, invalid values of the configuration count as absent.
func (p Plugin) Ledger(conf *spec.Conf, lax bool) (ipam.Ledger, error) {
	verb := "STATUS"
	if lax {
		verb = "DEL"
	}
	a, err := allocator([]Plugin{p}, verb, spec.Owner{Network: conf.Name}, "", conf, nil)
	l, ok := a.(ipam.Ledger)
	if ok {
		l.Judge(restore.Vanished(nil))
	}
	return l, err
}

// allocator opens the plugin among all that a configuration is of, or whose IPAM plugin it is. It returns nil if there
// is none.
func allocator(all []Plugin, verb string, o spec.Owner, netns string, conf *spec.Conf,
	args [][2]string) (ipam.Allocator, error) {
	i := slices.IndexFunc(all, func(p Plugin) bool {
		return p.Allocates() && (p.Name == conf.IPAMType || p.Name == conf.Type)
	})
	if i < 0 {
		return nil, nil
	}
	r, err := all[i].NewRequest(verb, o, netns, conf, args)
	if err != nil {
		return nil, err
	}
	a, _, err := all[i].open(conf, r)
	if err != nil {
		return nil, err
	}
	return a, nil
}

// statusAllocator is allocator for a question about the network and no attachment.
func statusAllocator(all []Plugin, conf *spec.Conf) (ipam.Allocator, error) {
	return allocator(all, "STATUS", spec.Owner{Network: conf.Name}, "", conf, nil)
}

// outside is an IPAM plugin of another program, which is executed.
type outside struct {
	path string
	c    *call
}

func (o *outside) run(ctx context.Context, verb string) ([]byte, error) {
	e := o.c.env
	e.Command = verb
	call := e.call(e.stdin)
	call.Network, call.Type, call.Stderr, call.Delegate = o.c.conf.Name, o.c.conf.IPAMType, e.stderr, true
	defer engine.Step(ctx, named("ipam "+o.c.conf.IPAMType))()
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

// sameProgram reports whether the file at path is the running program: the same inode, or a copy. Copies are recognised
// by the build ID at the beginning of a Go program, a hash of everything that it was built from.
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
