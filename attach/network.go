package attach

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/fairlead-cni/fairlead/internal/hostview"
	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/spec"
)

// beginNetwork is begin for the verbs that concern a whole network.
func (r *Runtime) beginNetwork(verb string, l *spec.List) (*operation, error) {
	op := &operation{r: r, verb: verb, l: l, owner: spec.Owner{Network: l.Name}}
	if err := spec.ValidName(l.Name); err != nil {
		return nil, op.failed(spec.Errorf(spec.CodeConfig, "network %w", err))
	}
	var err error
	if op.version, err = spec.Select(l); err != nil {
		return nil, op.failed(err)
	}
	return op, nil
}

// GC deletes the remembered attachments of the network that are not in valid, and has each plugin collect
// what belongs to none in valid. It goes on past errors and joins all of them (clauses R4, R9). A list
// before 1.1.0 has no GC: then only the remembered attachments go. With disableGC nothing is done (clause
// C7). What is remembered goes by the list that it was attached by, see [Cached.AttachedBy].
//
// A nil valid is an error with code 7 and deletes nothing; an empty one that is not nil deletes
// everything.
func (r *Runtime) GC(ctx context.Context, l *spec.List, valid []spec.Attachment) error {
	op, err := r.beginNetwork("GC", l)
	if err != nil {
		return err
	}
	if valid == nil {
		return op.failed(spec.Errorf(spec.CodeConfig,
			"the list of valid attachments is nil; to remove all attachments, pass an empty list"))
	}
	if l.DisableGC {
		return nil
	}
	unlock, err := r.lockNetwork(ctx, l.Name, true)
	if err != nil {
		return op.failed(err)
	}
	defer unlock()
	r.tidyLocks()
	op.valid = valid
	stale := op.deleteStale(ctx)
	err = op.gc(ctx)
	if op.older(ctx) {
		err = op.gc(ctx)
	}
	return errors.Join(stale, err)
}

func (op *operation) gc(ctx context.Context) error {
	if !op.version.AtLeast(spec.V110) {
		return nil
	}
	var errs []error
	for _, conf := range op.l.Plugins {
		if _, err := op.run(ctx, "GC", conf, "", nil); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// deleteStale deletes the stored attachments that are not valid, with the arguments of their ADD. An entry whose DEL
// fails stays for the next GC. An entry without an owner is never deleted.
func (op *operation) deleteStale(ctx context.Context) error {
	cached, problems, err := op.r.list(op.l.Name)
	if err != nil {
		return op.failed(err)
	}
	for _, p := range problems {
		op.r.warn("%v", p) // nothing says that it is of this network
	}
	valid := make(map[spec.Attachment]bool, len(op.valid))
	for _, a := range op.valid {
		valid[a] = true
	}
	cached = slices.DeleteFunc(cached, func(c Cached) bool {
		return c.Bare || valid[spec.Attachment{ContainerID: c.ContainerID, IfName: c.IfName}]
	})
	return errors.Join(sideBySide(len(cached), func(i int) error { return op.deleteOne(ctx, cached[i].Owner()) })...)
}

// DelEach deletes attachments that List returned, several at a time, each by the list that attached it, or by l if that
// is unknown. It goes on after errors and returns one error or nil for each.
func (r *Runtime) DelEach(ctx context.Context, l *spec.List, cached []Cached, opts ...Option) []error {
	return sideBySide(len(cached), func(i int) error {
		c := cached[i]
		at := Attachment{ContainerID: c.ContainerID, IfName: c.IfName, Netns: c.Netns}
		return r.Del(ctx, c.AttachedBy(l), at, opts...)
	})
}

// atOnce is how many attachments are deleted at a time. DEL spends most of its time waiting for grace periods of the
// kernel.
const atOnce = 8

func sideBySide(n int, do func(i int) error) []error {
	errs := make([]error, n)
	next := make(chan int)
	var all sync.WaitGroup
	for range min(n, atOnce) {
		all.Go(func() {
			for i := range next {
				errs[i] = do(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	all.Wait()
	return errs
}

// stderr returns the writer for the output of plugins and for warnings. Several may write at once, which only a file
// allows without a lock.
func (r *Runtime) stderr() io.Writer {
	if _, file := r.Stderr.(*os.File); file || r.Stderr == nil {
		return r.Stderr
	}
	return lockedWriter{r}
}

type lockedWriter struct{ r *Runtime }

// Write implements io.Writer.
func (l lockedWriter) Write(b []byte) (int, error) {
	l.r.writing.Lock()
	defer l.r.writing.Unlock()
	return l.r.Stderr.Write(b)
}

func (op *operation) deleteOne(ctx context.Context, o spec.Owner) error {
	unlock, err := op.r.lockContainer(ctx, o.ContainerID)
	if err != nil {
		return op.failed(err)
	}
	defer unlock()
	c, err := op.r.load(o)
	if c == nil || err != nil { // nil: its DEL was faster
		return err
	}
	return op.ofEntry(c).detach(ctx, c, true)
}

// ofEntry returns the operation DEL for an entry of the cache, with the list that attached it and the arguments of ADD.
// Process numbers are reused, so a path below /proc is used only if the cache knows which namespace it was.
func (op *operation) ofEntry(c *Cached) *operation {
	l, version := op.l, op.version
	if was := c.AttachedBy(l); was != l {
		if v, err := spec.Select(was); err == nil {
			l, version = was, v
		}
	}
	netns := c.Netns
	if c.seen == "" && strings.HasPrefix(netns, "/proc/") {
		netns = ""
	}
	return &operation{r: op.r, verb: "DEL", l: l, owner: c.Owner(), version: version,
		a: Attachment{ContainerID: c.ContainerID, IfName: c.IfName, Netns: netns}}
}

// Gone reports whether the attached namespace certainly no longer exists, as far as the cache knows. In a container of
// its own this program may not see all mounts: the file then exists without a mount on it, or its directory is missing.
// That proves nothing, except for an attachment of an earlier boot.
func (c *Cached) Gone() bool {
	if c.Netns == "" {
		return false
	}
	now, err := c.identity()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return !hostview.Unseen(c.Netns) || !c.thisBoot()
	case errors.Is(err, errNoNamespace):
		return !c.thisBoot()
	}
	return err == nil && c.seen != "" && c.seen != now && (!hostview.Unseen(c.Netns) || !c.thisBoot())
}

// identity returns the identity of the namespace that is at the attachment's path now.
func (c *Cached) identity() (string, error) {
	n, err := lookAt(c.Netns)
	if err != nil {
		return "", err
	}
	return n.identity(c.bootID)
}

func (c *Cached) bootID() (string, error) {
	if c.boot == nil {
		return bootID()
	}
	return c.boot()
}

// thisBoot reports whether the attachment may have been made since the machine was started.
func (c *Cached) thisBoot() bool {
	boot, err := c.bootID()
	return err != nil || c.seen == "" || strings.HasPrefix(c.seen, boot+"/")
}

// Status calls STATUS of each plugin in order, up to the first one that is not ready. Lists of a version before 1.1.0
// have no STATUS: then Status returns nil.
func (r *Runtime) Status(ctx context.Context, l *spec.List) error {
	op, err := r.beginNetwork("STATUS", l)
	if err != nil {
		return err
	}
	err = op.status(ctx)
	if op.older(ctx) {
		err = op.status(ctx)
	}
	return err
}

func (op *operation) status(ctx context.Context) error {
	if !op.version.AtLeast(spec.V110) {
		return nil
	}
	for _, conf := range op.l.Plugins {
		if _, err := op.run(ctx, "STATUS", conf, "", nil); err != nil {
			return err
		}
	}
	return nil
}

// Versions asks each plugin of the list which versions it supports, and returns the answers by type. It goes on after
// errors and joins them.
func (r *Runtime) Versions(ctx context.Context, l *spec.List) (map[string][]spec.Version, error) {
	speaks := map[string][]spec.Version{}
	var errs []error
	for _, conf := range l.Plugins {
		if _, done := speaks[conf.Type]; done {
			continue
		}
		versions, err := r.versions(ctx, l, conf.Type)
		if err != nil {
			errs = append(errs, fmt.Errorf("network %s: %w", l.Name, err))
			continue
		}
		speaks[conf.Type] = versions
	}
	return speaks, errors.Join(errs...)
}

func (r *Runtime) versions(ctx context.Context, l *spec.List, typ string) ([]spec.Version, error) {
	path, err := invoke.Find(typ, r.PluginDirs)
	if err != nil {
		return nil, err
	}
	return invoke.Versions(ctx, r.run(), path, invoke.Call{
		Type: typ, Network: l.Name, Path: r.PluginDirs, Env: r.Env, Stderr: r.stderr(), Grace: r.Grace,
	})
}

// Validate finds every plugin of the list and checks that it supports the list's version. It returns the capabilities
// that the plugins declare, sorted. It changes nothing.
func (r *Runtime) Validate(ctx context.Context, l *spec.List) (capabilities []string, err error) {
	var errs []error
	if err := spec.ValidName(l.Name); err != nil {
		errs = append(errs, spec.Errorf(spec.CodeConfig, "network %w", err))
	}
	speaks, err := r.Versions(ctx, l)
	if err != nil {
		errs = append(errs, err)
	}
	for _, typ := range slices.Sorted(maps.Keys(speaks)) {
		if _, err := spec.Select(l, speaks[typ]); err != nil {
			errs = append(errs, fmt.Errorf("network %s: plugin %s: %w", l.Name, typ, err))
		}
	}
	if len(errs) == 0 { // each speaks one of the list's versions: is it the same one?
		if _, err := spec.Select(l, slices.Collect(maps.Values(speaks))...); err != nil {
			errs = append(errs, fmt.Errorf("network %s: %w", l.Name, err))
		}
	}
	return slices.Sorted(maps.Keys(l.Capabilities())), errors.Join(errs...)
}
