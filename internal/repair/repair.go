// Package repair restores the host-side state of attachments, after a flush or reload of the packet filter or other
// damage. Like CHECK, it computes the wanted state from the cache. It changes nothing inside containers.
package repair

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/extra"
	"github.com/fairlead-cni/fairlead/internal/restore"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/resource/filter/forward"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// Repairer restores the host-side state of attachments. Runtime and Plugins must be set.
type Repairer struct {
	Runtime *attach.Runtime
	Plugins []sdk.Plugin // of this project

	Network  string // only this network; empty: all
	Firewall bool   // only what belongs to the packet filter
	DryRun   bool   // change nothing

	View *kernel.World // of a dry run: the host as kernel.OpenView opens it; nil opens the host

	// Now returns the networks as they are configured now. A list is used if an attachment was made from the same
	// text, because the folder beside its file may have added plugins.
	Now func() []*spec.List

	// Foreign says why the program of a plugin is not of this project although its type is; "" if it is. It is not
	// called for attachments that were surely made by this project.
	Foreign func(l *spec.List, typ string) string

	// External returns the plugin of another project for a type of a list, if it can repair what it made (see
	// extra.Ask). If the field is nil, no such plugin is asked.
	External func(ctx context.Context, l *spec.List, typ string) *extra.External

	// List returns the attachments, as Runtime.List does, and the problems with others. If the field is nil, the
	// attachments are those of Runtime.
	List func() ([]attach.Cached, []error)

	backend string // during a handover
	shared  *restore.Verified
}

// State is the outcome for an attachment.
type State string

// The states of an attachment after a repair.
const (
	InOrder  State = "in order"
	Repaired State = "repaired"
	Broken   State = "broken"         // something could not be restored
	ToRepair State = "to be repaired" // dry run: something is missing, and can be restored
	Gone     State = "gone"           // its namespace is gone, or another container has its address: left to GC
	Busy     State = "busy"           // it was deleted or attached again during the repair, which needs none then
	Foreign  State = "foreign"
	// foreign, and known rules or links of the reference plugins are missing
	Offline State = "offline"
	Adopted State = "adopted" // it was foreign, and was attached again
)

// Finding is an attachment and the outcome of its repair.
type Finding struct {
	Owner    spec.Owner
	Netns    string
	Args     [][2]string // CNI_ARGS of its ADD
	State    State
	Repaired []string // what was restored, in the words of ip(8) and nft(8)
	// what differs and could not be restored; in a dry run, also what could
	Differences spec.Differences
	Changed     bool     // the network's configuration has changed since; the wanted state is that of then
	Lost        []string // handover: what the reference cannot express
	Held        bool     // it is Gone because another has its address; its container lives
	Left        []string // plugins that failed in a DEL after the interface was removed
	NotOurs     []string // plugins of its list that were skipped, and why

	Plan []restore.Planned // dry run: what should exist, in order
}

// Report is the outcome of a repair.
type Report struct {
	Guard    []string // shared parts of Fairlead's tables that were missing
	Findings []Finding
	Problems []string // errors of no attachment, for example an unreadable file of the cache
	Unread   int      // unreadable files of the cache that may be attachments
	Rounds   int      // more than 1 if the packet filter was flushed again during the repair
	Took     time.Duration
}

// OK reports whether everything is as it should be now.
func (r *Report) OK() bool { return len(r.Problems) == 0 && !r.Differs() }

// Differs reports whether an attachment is not as it should be.
func (r *Report) Differs() bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool {
		return f.State == Broken || f.State == ToRepair || f.State == Offline || f.Held
	})
}

// The kernel applies one change of the packet filter at a time. Several workers read files meanwhile.
const workers = 4

// maxRounds limits how often a repair starts again because of another flush.
const maxRounds = 5

// Run repairs. Its order fails closed: first the shared parts of Fairlead's tables, which let no packet in; then the
// blocking rules of all attachments; then everything else.
func (r *Repairer) Run(ctx context.Context) (*Report, error) {
	if r.View != nil {
		return r.on(ctx, r.View)
	}
	host, err := restore.OpenHost()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	return r.on(ctx, host)
}

// Shut prepares for a flush of the packet filter. It removes the containers' way to 127.0.0.0/8 of the host, which
// Fairlead's rules protect, until the next repair. Until then, ports published on 127.0.0.1 do not answer.
func Shut(ctx context.Context) (did []string, err error) {
	host, err := restore.OpenHost()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	return filter.Shut(ctx, host)
}

func (r *Repairer) on(ctx context.Context, host *kernel.World) (*Report, error) {
	report, start := &Report{}, time.Now()
	defer func() { report.Took = time.Since(start) }()
	for {
		report.Rounds++
		again, err := r.round(ctx, host, report)
		if err != nil || !again {
			return report, err
		}
		if report.Rounds == maxRounds {
			report.Problems = append(report.Problems,
				fmt.Sprintf("the packet filter was flushed again during the repair, %d times", maxRounds))
			return report, nil
		}
	}
}

func (r *Repairer) round(ctx context.Context, host *kernel.World, report *Report) (again bool, err error) {
	ctx = filter.Together(ctx)
	r.shared = new(restore.Verified)
	list, problems := r.list()
	if err := report.unlisted(problems, r.Network); err != nil {
		return false, err
	}
	var stand filter.Standing
	guard := func() (err error) {
		var did []string
		did, stand, err = filter.Guard(ctx, host)
		report.Guard = append(report.Guard, did...)
		return unguarded(err)
	}
	// Attachments of a network share objects, whose settings are those of the last one attached.
	slices.SortStableFunc(list, func(a, b attach.Cached) int { return a.Stored.Compare(b.Stored) })
	all, planned := r.plans(ctx, host, list)
	if !r.DryRun { // a host without rules gets no tables
		for i := range all {
			<-planned[i]
			if !all[i].guarded {
				continue
			}
			if err := guard(); err != nil {
				return false, err
			}
			break
		}
	}
	err = filter.AtOnce(ctx, host, func() {
		for i := range all { // in their order
			<-planned[i]
			all[i].repair(ctx, resource.Closes)
		}
	})
	if err := unguarded(err); err != nil {
		return false, err
	}
	each(len(all), workers, func(i int) { all[i].external(ctx, resource.Closes) })
	if !r.DryRun && len(all) > 0 {
		if err := forward.Reconsider(ctx, host); err != nil {
			return false, err
		}
	}
	each(len(all), workers, func(i int) {
		all[i].repair(ctx, resource.Opens)
		all[i].external(ctx, resource.Opens)
	})
	for _, a := range all {
		a.retract(ctx)
		a.awaitDel(ctx)
	}
	report.merge(all)
	if stand != nil {
		ok, err := filter.Guarded(ctx, host, stand)
		return !ok, err
	}
	return false, ctx.Err()
}

func (r *Repairer) list() ([]attach.Cached, []error) {
	if r.List != nil {
		return r.List()
	}
	return r.Runtime.List(r.Network)
}

// plans finds out, at once, what each attachment should have. The channel of one is closed when that is known.
func (r *Repairer) plans(ctx context.Context, host *kernel.World, list []attach.Cached) ([]*attached, []chan struct{}) {
	all := make([]*attached, len(list))
	lists := r.lists()
	planned := make([]chan struct{}, len(list))
	for i := range planned {
		planned[i] = make(chan struct{})
	}
	go each(len(list), workers, func(i int) {
		all[i] = r.plan(ctx, host, lists, &list[i])
		close(planned[i])
	})
	return all, planned
}

// unlisted takes down which attachments could not be read. It is an error if none could be seen.
func (r *Report) unlisted(problems []error, network string) error {
	r.Problems, r.Unread = nil, 0
	for _, p := range problems {
		if errors.Is(p, attach.ErrUnseen) {
			return p
		}
		u := new(attach.Unread)
		known := errors.As(p, &u)
		if known && !u.Of(network) {
			continue
		}
		r.Problems = append(r.Problems, p.Error())
		if known {
			r.Unread++
		}
	}
	return nil
}

func unguarded(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("blocking rules cannot be made, so no rule that lets packets in is made: %w", err)
}

// merge takes over the outcome of a round. What an earlier round restored counts as restored.
func (r *Report) merge(all []*attached) {
	before := map[spec.Owner]Finding{}
	for _, f := range r.Findings {
		before[f.Owner] = f
	}
	r.Findings = nil
	for _, a := range all {
		for _, text := range before[a.Owner].Repaired {
			a.did(text)
		}
		r.Findings = append(r.Findings, a.finding())
	}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		return slices.Compare([]string{a.Owner.Network, a.Owner.ContainerID, a.Owner.IfName},
			[]string{b.Owner.Network, b.Owner.ContainerID, b.Owner.IfName})
	})
}

// each calls do for 0 to n-1, in that many workers.
func each(n, workers int, do func(i int)) {
	var group sync.WaitGroup
	next := make(chan int)
	for range min(n, workers) {
		group.Go(func() {
			for i := range next {
				do(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	group.Wait()
}

// lookUp finds the list by which an attachment was made.
type lookUp func(*attach.Cached) (l *spec.List, changed bool, err error)

// lists returns the list of an attachment as it was, with the plugins that the folder beside its file adds, if the
// file is still the same. It parses each configuration once, because many attachments share few.
func (r *Repairer) lists() lookUp {
	var now []*spec.List
	if r.Now != nil {
		now = r.Now()
	}
	var all sync.Map // from a configuration to what parses it once
	return func(c *attach.Cached) (l *spec.List, changed bool, err error) {
		for _, l := range now {
			switch {
			case l.Name != c.Network:
			case bytes.Equal(l.Raw, c.Config):
				return l, false, nil
			default:
				changed = Changed(l, c)
			}
		}
		parse := sync.OnceValues(func() (*spec.List, error) { return spec.ParseList(c.Config) })
		once, _ := all.LoadOrStore(string(c.Config), parse)
		if l, err = once.(func() (*spec.List, error))(); err != nil {
			return nil, changed, fmt.Errorf("%s: the configuration in the cache: %w", c.File, err)
		}
		return l, changed, nil
	}
}

// Changed reports whether a network's configuration has changed since an attachment was made.
func Changed(now *spec.List, c *attach.Cached) bool {
	var a, b struct{ Plugins any }
	if bytes.Equal(now.Raw, c.Config) || json.Unmarshal(writtenOut(now.Raw), &a) != nil ||
		json.Unmarshal(writtenOut(c.Config), &b) != nil {
		return false
	}
	return a.Plugins != nil && b.Plugins != nil && !reflect.DeepEqual(a.Plugins, b.Plugins)
}

// writtenOut returns a list with its chain written as separate plugins, which attaches the same.
func writtenOut(list []byte) []byte {
	if l, err := spec.ParseList(list); err == nil {
		if doc, _, err := l.WriteOut(); err == nil {
			return doc
		}
	}
	return list
}

var errNoConfig = errors.New("the cache has a result but no configuration, so the wanted state is unknown")
