package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/snapshot"
	"github.com/fairlead-cni/fairlead/internal/command/cli/target"
	"github.com/fairlead-cni/fairlead/internal/command/cli/term"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// The states of a checked attachment, besides gone.
const (
	inOrder   = "in order"
	differs   = "differs"
	unchecked = "unchecked" // a plugin could not check, and no other found a difference
)

// checkedState is an attachment in the answer of check for several attachments.
type checkedState struct {
	checked
	Name  string `json:"name,omitempty"`
	State string `json:"state"` // in order, differs, unchecked or gone
}

// checkMany checks the attachments of the network or container called name; all if name is empty.
func checkMany(a *app.App, name string) error {
	shot, err := snapshot.Open("")
	if err != nil {
		return err
	}
	defer shot.Close()
	networks := map[string]*checkable{}
	list, err := chosen(a, name, shot.All, networks)
	if err != nil {
		return err
	}
	sharing := sdk.Share(shot.World)
	a.Orphans = true
	doc := struct {
		OK          bool           `json:"ok"`
		Attachments []checkedState `json:"attachments"`
		Problems    []string       `json:"problems,omitempty"`
	}{OK: true, Attachments: []checkedState{}}
	s, count := a.Style(a.Stdout), map[string]int{}
	for _, c := range list {
		checked, said := checkCached(a, c, networks, shot, sharing)
		count[checked.State]++
		doc.OK = doc.OK && (checked.State == inOrder || checked.State == attached.Gone)
		doc.Attachments = append(doc.Attachments, checked)
		if len(said) > 0 && !a.JSON() {
			node := &term.Tree{Text: term.Sprintf("%s %s", attached.ShortOwner(c), s.Bad(checked.State))}
			for _, line := range said {
				node.Add("%s", line)
			}
			a.Draw(node)
		}
	}
	doc.Problems = shot.Problems(a, "")
	for _, p := range unusable(name == "", networks) {
		doc.Problems, a.Status = append(doc.Problems, p.Error()), app.ExitFailure
	}
	doc.OK = doc.OK && a.Status == app.ExitOK
	switch {
	case count[differs] > 0:
		a.Status = app.ExitFault
	case !doc.OK:
		a.Status = app.ExitFailure
	}
	if a.JSON() {
		return a.PrintJSON(doc)
	}
	sumChecked(a, count)
	a.NoteAll(doc.Problems)
	return nil
}

// sumChecked prints how many attachments are in each state, and the commands that help.
func sumChecked(a *app.App, count map[string]int) {
	var sum []string
	for _, state := range []string{inOrder, differs, unchecked, attached.Gone} {
		if n := count[state]; n > 0 {
			sum = append(sum, fmt.Sprintf("%d %s", n, state))
		}
	}
	if len(sum) == 0 {
		sum = []string{"nothing is attached"}
	}
	a.Print("%s\n", strings.Join(sum, ", "))
	if count[differs] > 0 {
		a.Note("`fairlead doctor` says why, and how to correct it; `fairlead repair` restores what the host lacks")
	}
	if count[attached.Gone] > 0 {
		a.Note("`fairlead gc --gone` removes what dead containers left")
	}
}

// unusable returns the problems with files that define networks, if all networks were checked, or one whose file cannot
// be used.
func unusable(all bool, networks map[string]*checkable) []error {
	for name, n := range networks {
		fileless := n.err == nil && n.Remembered && name != attached.LoopbackNetwork
		all = all || fileless
	}
	if !all {
		return nil
	}
	_, problems := spec.LoadDir(netconf.ConfDir())
	return problems
}

// chosen returns the attachments of the network called name, or in the file name, else of the container. An empty name
// selects all. A network that is found is added to networks.
func chosen(a *app.App, name string, list []attach.Cached,
	networks map[string]*checkable) ([]attach.Cached, error) {
	if name == "" {
		return list, nil
	}
	other := func(c attach.Cached) bool { return c.Network != name }
	if on := slices.DeleteFunc(slices.Clone(list), other); len(on) > 0 {
		return on, nil
	}
	if found := attached.Find(name, list); len(found) > 0 {
		return found, nil
	}
	n, err := netconf.FindOrFile(a, name)
	switch {
	case err == nil:
		rt, err := netconf.Runtime(a, n)
		networks[n.Name] = &checkable{n, rt, err}
		other := func(c attach.Cached) bool { return c.Network != n.Name }
		return slices.DeleteFunc(list, other), nil // it may have none
	case strings.Contains(name, "/") && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	names := []string{netconf.DefaultNetwork}
	for _, l := range netconf.Configured() {
		names = append(names, l.Name)
	}
	hint := "`fairlead ls` lists the attachments, and `fairlead net ls` the networks."
	return nil, app.Fail(app.ExitNotFound, attached.Meant(name, list, names...)+hint,
		"%q is neither a network nor a container: %w", name, attach.ErrNotAttached)
}

// checkable is a network and the Runtime of its plugins, or why there is none. It is found once for all attachments of
// the network: the file is read once, and a warning about it is printed once.
type checkable struct {
	*netconf.Network
	runtime *attach.Runtime
	err     error
}

// checkableOf returns the network that an attachment of the cache belongs to.
func checkableOf(a *app.App, c attach.Cached) *checkable {
	n, err := (*netconf.Network)(nil), error(nil)
	// the runtime keeps no file for this network
	if l := c.AttachedBy(nil); c.Network == attached.LoopbackNetwork && l != nil {
		n = &netconf.Network{List: l, Remembered: true}
	} else if n, err = netconf.Find(a, c.Network); err != nil {
		return &checkable{err: err}
	}
	rt, err := netconf.Runtime(a, n)
	return &checkable{n, rt, err}
}

// checkCached checks an attachment of the cache. networks keeps those found so far.
func checkCached(a *app.App, c attach.Cached, networks map[string]*checkable,
	s *snapshot.Snapshot, sharing *sdk.Sharing) (doc checkedState, said []string) {
	doc = checkedState{checked{Key: attached.KeyOf(c.Owner(), c.Netns)}, attached.Name(c), unchecked}
	could := func(err error) (checkedState, []string) {
		doc.Problems = spec.DifferencesIn(err).Lines()
		return doc, doc.Problems
	}
	w, err := sharing.Open(c.Owner(), c.Netns)
	if err == nil {
		defer w.Container.Close()
	}
	// Open found the namespace that was attached, as far as Fairlead's plugins recorded it.
	if c.Gone() || err != nil && s.Gone(c) {
		doc.State = attached.Gone
		return doc, nil
	}
	n := networks[c.Network]
	if n == nil {
		n = checkableOf(a, c)
		networks[c.Network] = n
	}
	if n.err != nil {
		return could(n.err)
	}
	t := &target.Target{Network: n.Network, Runtime: n.runtime,
		Attachment: attach.Attachment{ContainerID: c.ContainerID, Netns: c.Netns, IfName: c.IfName}}
	if doc.checked, said, err = compare(a, t, &c, sharing, w); err != nil && doc.OK {
		doc.OK = false
		return doc, doc.Problems
	}
	if doc.State = inOrder; !doc.OK {
		doc.State = differs
	}
	return doc, said
}
