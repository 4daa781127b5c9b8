// Package repair makes what attachments have on the host again, after somebody flushed or reloaded the packet
// filter or took something away. What there should be it knows from the attachments that are remembered, as
// CHECK does; the containers are not touched.
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
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/resource/filter/forward"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Repairer repairs. Runtime and Plugins have to be set.
type Repairer struct {
	Runtime *attach.Runtime
	Plugins []sdk.Plugin // ours

	Network  string // only this one; empty: all
	Firewall bool   // only what belongs to the packet filter
	DryRun   bool   // only look

	// Now reads the networks as they are configured now. One counts where an attachment was made from the same
	// text: a folder beside its file may have added plugins.
	Now func() []*spec.List

	// Foreign says why a plugin of a list is not ours although its type is; empty: it is. It is not asked
	// about attachments that ours have made for certain.
	Foreign func(l *spec.List, typ string) string

	// External is the plugin of another program that is found for a type of a list, where it can repair what it made,
	// see sdk.AskExternal; nil: nobody can be asked. Run asks for nothing before External has said so.
	External func(ctx context.Context, l *spec.List, typ string) *sdk.External

	backend string // of a handover that is in progress
}

// A State is what came of an attachment.
type State string

// The States.
const (
	InOrder  State = "in order"
	Repaired State = "repaired"
	Broken   State = "broken"         // something could not be mended
	ToRepair State = "to be repaired" // in a dry run: something is missing, and can be made again
	Gone     State = "gone"           // its namespace, or its address: GC's business
	Busy     State = "busy"           // it was deleted or made anew meanwhile, which sees to all that repair would
	Foreign  State = "foreign"
	// foreign, and rules or links are missing that the reference made for it, as far as these can be told
	Offline State = "offline"
	Adopted State = "adopted" // it was foreign, and attached anew
)

// A Finding is an attachment and what came of it.
type Finding struct {
	Owner    spec.Owner
	Netns    string
	State    State
	Repaired []string    // what was made, in the words of ip(8) and nft(8)
	Drift    []string    // what is not as it should be, and could not be mended; in a dry run also what could
	Wrong    []sdk.Wrong // the same by resource, where it is of one
	Changed  bool        // the network is configured otherwise by now; what there should be is as it was attached
	Lost     []string    // what the reference knows nothing of, in a handover
	Held     bool        // it is Gone, for its address is another's, and the container lives
	Left     []string    // plugins that a DEL, which took its interface down, has failed for
	NotOurs  []string    // plugins of its list that were passed over, and why

	Plan []sdk.Planned // in a dry run: what there should be, in order
}

// A Report is what a repair came to.
type Report struct {
	Guard    []string // what always stands in our tables and was missing
	Findings []Finding
	Problems []string // of no attachment: what in the cache cannot be read, say
	Unread   int      // files of the cache that may be attachments, and cannot be read
	Rounds   int      // more than one where somebody flushed the packet filter again meanwhile
	Took     time.Duration
}

// OK reports whether all is as it should be now.
func (r *Report) OK() bool {
	return len(r.Problems) == 0 && !slices.ContainsFunc(r.Findings, func(f Finding) bool {
		return f.State == Broken || f.State == ToRepair || f.State == Offline || f.Held
	})
}

// Several at once: the kernel takes changes of the packet filter one after the other, and between these there
// are files to read.
const workers = 4

// maxRounds bounds how often a repair begins again because somebody flushed meanwhile.
const maxRounds = 5

// Run repairs. The order is what makes it fail closed: first what stands in our tables whoever is attached, where
// nothing lets a packet in by itself; then, of all attachments, the rules that keep packets out; then all else.
func (r *Repairer) Run(ctx context.Context) (*Report, error) {
	host, err := sdk.OpenHost()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	return r.on(ctx, host)
}

// Shut is for the moment before somebody flushes the packet filter, and holds until the next repair: containers
// get no route to 127.0.0.0/8 of the host, which our rules would have kept them from. Ports that are published on
// 127.0.0.1 do not answer the while.
func Shut(ctx context.Context) (did []string, err error) {
	host, err := sdk.OpenHost()
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
				fmt.Sprintf("the packet filter was flushed again while it was repaired, %d times", maxRounds))
			return report, nil
		}
	}
}

func (r *Repairer) round(ctx context.Context, host *kernel.World, report *Report) (again bool, err error) {
	ctx = filter.Together(ctx)
	list, problems := r.Runtime.List(r.Network)
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
	// As they came: what a network's attachments share is as the last one configured it.
	slices.SortStableFunc(list, func(a, b attach.Cached) int { return a.Stored.Compare(b.Stored) })
	all, planned := r.plans(ctx, host, list)
	if !r.DryRun { // our tables are for rules: where nobody has any, none is made
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
	}
	report.merge(all)
	if stand != nil {
		ok, err := filter.Guarded(ctx, host, stand)
		return !ok, err
	}
	return false, ctx.Err()
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
		r.Problems = append(r.Problems, p.Error())
		if u := new(attach.Unread); errors.As(p, &u) && u.Of(network) {
			r.Unread++
		}
	}
	return nil
}

func unguarded(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("what keeps packets out cannot be made, so nothing that lets them in is: %w", err)
}

// merge takes over what a round found. What an earlier round made counts as made.
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

// each calls do for 0 to n-1, by that many workers.
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

// A lookUp finds what an attachment was made from.
type lookUp func(*attach.Cached) (l *spec.List, changed bool, err error)

// lists is as it was then, and with what a folder beside the list's file adds, where that file is still the same.
// Each configuration is parsed once: a thousand attachments have a few.
func (r *Repairer) lists() lookUp {
	var now []*spec.List
	if r.Now != nil {
		now = r.Now()
	}
	type parsed struct {
		list *spec.List
		err  error
	}
	var mu sync.Mutex
	all := map[string]parsed{}
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
		mu.Lock()
		defer mu.Unlock()
		p, ok := all[string(c.Config)]
		if !ok {
			p.list, p.err = spec.ParseList(c.Config)
			all[string(c.Config)] = p
		}
		if p.err != nil {
			return nil, changed, fmt.Errorf("%s: the configuration that it was attached by: %w", c.File, p.err)
		}
		return p.list, changed, nil
	}
}

// Changed reports whether a network is configured otherwise now than when an attachment was made.
func Changed(now *spec.List, c *attach.Cached) bool {
	var a, b struct{ Plugins any }
	if bytes.Equal(now.Raw, c.Config) || json.Unmarshal(writtenOut(now.Raw), &a) != nil ||
		json.Unmarshal(writtenOut(c.Config), &b) != nil {
		return false
	}
	return a.Plugins != nil && b.Plugins != nil && !reflect.DeepEqual(a.Plugins, b.Plugins)
}

// writtenOut is the document of a list without a chain, which attaches the same.
func writtenOut(list []byte) []byte {
	if l, err := spec.ParseList(list); err == nil {
		if doc, _, err := l.WriteOut(); err == nil {
			return doc
		}
	}
	return list
}

var errNoConfig = errors.New("the cache has a result and no configuration, so nobody knows what there should be")
