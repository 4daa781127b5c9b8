package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
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
func (a *app) checkMany(name string) error {
	list, problems := (&attach.Runtime{}).List("")
	if err := unseen(problems); err != nil {
		return err
	}
	list, err := a.chosen(name, list)
	if err != nil {
		return err
	}
	a.orphans = true
	doc := struct {
		OK          bool           `json:"ok"`
		Attachments []checkedState `json:"attachments"`
		Problems    []string       `json:"problems,omitempty"`
	}{OK: true, Attachments: []checkedState{}}
	s, count := a.style(a.stdout), map[string]int{}
	networks := map[string]*network{}
	for _, c := range list {
		checked, said := a.checkCached(c, networks)
		count[checked.State]++
		doc.OK = doc.OK && (checked.State == inOrder || checked.State == gone)
		doc.Attachments = append(doc.Attachments, checked)
		if len(said) > 0 && !a.json() {
			node := &tree{text: sprintf("%s %s", shortOwner(c), s.bad(checked.State))}
			for _, line := range said {
				node.add("%s", line)
			}
			node.print(a.stdout, s)
		}
	}
	for _, p := range problems {
		doc.Problems = append(doc.Problems, p.Error())
	}
	doc.OK = doc.OK && len(problems) == 0
	switch {
	case count[differs] > 0:
		a.status = exitDrift
	case !doc.OK:
		a.status = exitFailure
	}
	if a.json() {
		return printJSON(a.stdout, doc)
	}
	a.sumChecked(count)
	for _, p := range doc.Problems {
		a.note("%s", p)
	}
	return nil
}

// sumChecked says how many attachments came to what, and what to do about it.
func (a *app) sumChecked(count map[string]int) {
	var sum []string
	for _, state := range []string{inOrder, differs, unchecked, gone} {
		if n := count[state]; n > 0 {
			sum = append(sum, fmt.Sprintf("%d %s", n, state))
		}
	}
	if len(sum) == 0 {
		sum = []string{"nothing is attached"}
	}
	a.print("%s\n", strings.Join(sum, ", "))
	if count[differs] > 0 {
		a.note("`fairlead doctor` says why and how it is mended; `fairlead repair` makes again what the host lacks")
	}
	if count[gone] > 0 {
		a.note("`fairlead gc --gone` removes what dead containers left")
	}
}

// chosen are the attachments that a user means by a name: a network's, else a container's. All where it is empty.
func (a *app) chosen(name string, list []attach.Cached) ([]attach.Cached, error) {
	if name == "" {
		return list, nil
	}
	other := func(c attach.Cached) bool { return c.Network != name }
	if on := slices.DeleteFunc(slices.Clone(list), other); len(on) > 0 {
		return on, nil
	}
	if found := find(name, list); len(found) > 0 {
		return found, nil
	}
	if _, err := a.network(name); err == nil {
		return nil, nil // nothing is attached to it
	}
	return nil, fail(exitNotFound, "`fairlead ls` lists what is attached, and `fairlead net ls` the networks.",
		"%q is neither a network nor a container: %w", name, attach.ErrNotAttached)
}

// checkCached checks what is remembered. The networks that were found are kept, so that what is odd in a file is said
// once.
func (a *app) checkCached(c attach.Cached, networks map[string]*network) (doc checkedState, said []string) {
	doc = checkedState{checked{attached: describe(c).attached}, nameOf(c), unchecked}
	could := func(err error) (checkedState, []string) {
		doc.Problems = strings.Split(err.Error(), "\n")
		return doc, doc.Problems
	}
	if isGone(c) {
		doc.State = gone
		return doc, nil
	}
	n := networks[c.Network]
	if n == nil {
		var err error
		if l := c.AttachedBy(nil); c.Network == loopbackNetwork && l != nil { // its runtime has no file of it
			n = &network{List: l, remembered: true}
		} else if n, err = a.network(c.Network); err != nil {
			return could(err)
		}
		networks[c.Network] = n
	}
	rt, err := a.runtime(n)
	if err != nil {
		return could(err)
	}
	t := &target{network: n, runtime: rt,
		Attachment: attach.Attachment{ContainerID: c.ContainerID, Netns: c.Netns, IfName: c.IfName}}
	if doc.checked, said, err = a.compare(t, &c); err != nil && doc.OK {
		doc.OK = false
		return doc, doc.Problems
	}
	if doc.State = inOrder; !doc.OK {
		doc.State = differs
	}
	return doc, said
}
