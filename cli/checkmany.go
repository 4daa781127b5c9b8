package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/cli/app"
	"github.com/fairlead-cni/fairlead/cli/attached"
	"github.com/fairlead-cni/fairlead/cli/netconf"
	"github.com/fairlead-cni/fairlead/cli/target"
	"github.com/fairlead-cni/fairlead/cli/term"
)

// What a check comes to, beside gone.
const (
	inOrder   = "in order"
	differs   = "differs"
	unchecked = "unchecked" // a plugin could not look, and no other one found a difference
)

// A checkedState is one of the attachments that check answers with where it was not told which.
type checkedState struct {
	checked
	Name  string `json:"name,omitempty"`
	State string `json:"state"` // in order, differs, unchecked or gone
}

// checkMany checks the attachments of the network or the container of a name, or all where it is empty.
func checkMany(a *app.App, name string) error {
	list, problems := (&attach.Runtime{}).List("")
	if err := attached.Unseen(problems); err != nil {
		return err
	}
	list, err := chosen(a, name, list)
	if err != nil {
		return err
	}
	a.Orphans = true
	doc := struct {
		OK          bool           `json:"ok"`
		Attachments []checkedState `json:"attachments"`
		Problems    []string       `json:"problems,omitempty"`
	}{OK: true, Attachments: []checkedState{}}
	s, count := a.Style(a.Stdout), map[string]int{}
	networks := map[string]*netconf.Network{}
	for _, c := range list {
		checked, said := checkCached(a, c, networks)
		count[checked.State]++
		doc.OK = doc.OK && (checked.State == inOrder || checked.State == attached.Gone)
		doc.Attachments = append(doc.Attachments, checked)
		if len(said) > 0 && !a.JSON() {
			node := &term.Tree{Text: term.Sprintf("%s %s", attached.ShortOwner(c), s.Bad(checked.State))}
			for _, line := range said {
				node.Add("%s", line)
			}
			node.Print(a.Stdout, s)
		}
	}
	for _, p := range problems {
		doc.Problems = append(doc.Problems, p.Error())
	}
	doc.OK = doc.OK && len(problems) == 0
	switch {
	case count[differs] > 0:
		a.Status = app.ExitDrift
	case !doc.OK:
		a.Status = app.ExitFailure
	}
	if a.JSON() {
		return term.PrintJSON(a.Stdout, doc)
	}
	sumChecked(a, count)
	for _, p := range doc.Problems {
		a.Note("%s", p)
	}
	return nil
}

// sumChecked says how many attachments came to what, and what to do about it.
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
		a.Note("`fairlead doctor` says why and how it is mended; `fairlead repair` makes again what the host lacks")
	}
	if count[attached.Gone] > 0 {
		a.Note("`fairlead gc --gone` removes what dead containers left")
	}
}

// chosen are the attachments that a user means by a name: a network's, else a container's. All where it is empty.
func chosen(a *app.App, name string, list []attach.Cached) ([]attach.Cached, error) {
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
	if _, err := netconf.Find(a, name); err == nil {
		return nil, nil // nothing is attached to it
	}
	return nil, app.Fail(app.ExitNotFound, "`fairlead ls` lists what is attached, and `fairlead net ls` the networks.",
		"%q is neither a network nor a container: %w", name, attach.ErrNotAttached)
}

// checkCached checks what is remembered. The networks that were found are kept, so that what is odd in a file is said
// once.
func checkCached(a *app.App, c attach.Cached, networks map[string]*netconf.Network) (doc checkedState, said []string) {
	doc = checkedState{checked{Key: attached.Describe(c).Key}, attached.Name(c), unchecked}
	could := func(err error) (checkedState, []string) {
		doc.Problems = strings.Split(err.Error(), "\n")
		return doc, doc.Problems
	}
	if attached.IsGone(c) {
		doc.State = attached.Gone
		return doc, nil
	}
	n := networks[c.Network]
	if n == nil {
		var err error
		if l := c.AttachedBy(nil); c.Network == attached.LoopbackNetwork && l != nil { // its runtime has no file of it
			n = &netconf.Network{List: l, Remembered: true}
		} else if n, err = netconf.Find(a, c.Network); err != nil {
			return could(err)
		}
		networks[c.Network] = n
	}
	rt, err := netconf.Runtime(a, n)
	if err != nil {
		return could(err)
	}
	t := &target.Target{Network: n, Runtime: rt,
		Attachment: attach.Attachment{ContainerID: c.ContainerID, Netns: c.Netns, IfName: c.IfName}}
	if doc.checked, said, err = compare(a, t, &c); err != nil && doc.OK {
		doc.OK = false
		return doc, doc.Problems
	}
	if doc.State = inOrder; !doc.OK {
		doc.State = differs
	}
	return doc, said
}
