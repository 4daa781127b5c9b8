package sdktest

import (
	"context"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/extra"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Life is the sequence of calls that attachments to a network go through: ADD, CHECK, a second ADD, DEL and DEL
// again, DEL without a result and without a namespace, GC, STATUS, a dry run, repair. Each plugin is executed, as by a
// runtime; the types are those that Main was given.
type Life struct {
	// Plugins are the configurations of the list's plugins, JSON objects without cniVersion and name. The last one is
	// the plugin under test.
	Plugins []string

	Breaks []Break
}

// A Break damages a living attachment in a way that CHECK must report.
type Break struct {
	Name string
	Do   func(*testing.T, *Attachment)
	Want string // a regular expression for CHECK's error
	Fix  bool   // `fairlead repair` makes it good while the container lives
}

// An Attachment is an attachment of a Life.
type Attachment struct {
	ContainerID, Netns, IfName string
	Result                     *spec.Result // of ADD

	prev json.RawMessage
}

// network is a Life with the programs of its plugins.
type network struct {
	t     *testing.T
	dir   string
	confs []*spec.Conf
}

func (l Life) network(t *testing.T) *network {
	t.Helper()
	n := &network{t: t}
	doc := `{"cniVersion":"1.1.0","name":"life","plugins":[` + strings.Join(l.Plugins, ",") + `]}`
	list, err := spec.ParseList([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	var types []string
	for _, p := range list.Plugins {
		n.confs = append(n.confs, p)
		types = append(types, p.Type)
		if p.IPAMType != "" {
			types = append(types, p.IPAMType)
		}
	}
	n.dir = Plugins(t, types...)
	return n
}

// do makes one call of one plugin.
func (n *network) do(conf *spec.Conf, verb string, a *Attachment, more map[string]any,
	under ...string) (json.RawMessage, error) {
	return Call{Dir: n.dir, Conf: n.stdin(conf, a, more), Verb: verb, ContainerID: a.ContainerID, Netns: a.Netns,
		IfName: a.IfName, Under: under}.Do()
}

// stdin returns the configuration as a runtime completes it.
func (n *network) stdin(conf *spec.Conf, a *Attachment, more map[string]any) json.RawMessage {
	n.t.Helper()
	o := conf.Object
	n.must("name", o.Set("name", conf.Name))
	n.must("cniVersion", o.Set("cniVersion", spec.V110))
	if a.prev != nil {
		n.must("prevResult", o.Set("prevResult", a.prev))
	}
	for key, value := range more {
		n.must(key, o.Set(key, value))
	}
	b, err := o.MarshalJSON()
	n.must("configuration", err)
	return b
}

func (n *network) add(a *Attachment, under ...string) (err error) {
	a.prev = nil
	for i, conf := range n.confs {
		if i < len(n.confs)-1 {
			a.prev, err = n.do(conf, "ADD", a, nil)
		} else {
			a.prev, err = n.do(conf, "ADD", a, nil, under...)
		}
		if err != nil {
			return err
		}
	}
	a.Result, err = spec.DecodeResult(a.prev, spec.V110)
	return err
}

func (n *network) each(verb string, a *Attachment, more map[string]any) error {
	confs := slices.Clone(n.confs)
	if verb == "DEL" {
		slices.Reverse(confs)
	}
	for _, conf := range confs {
		if _, err := n.do(conf, verb, a, more); err != nil {
			return err
		}
	}
	return nil
}

func (n *network) gc(valid ...*Attachment) error {
	list := []spec.Attachment{}
	for _, a := range valid {
		list = append(list, spec.Attachment{ContainerID: a.ContainerID, IfName: a.IfName})
	}
	return n.each("GC", &Attachment{}, map[string]any{"cni.dev/valid-attachments": list})
}

func (n *network) fresh(id string) *Attachment {
	return &Attachment{ContainerID: id, Netns: nstest.NewNS(n.t), IfName: "eth0"}
}

func (n *network) must(what string, err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatalf("%s: %v", what, err)
	}
}

// Test runs the life cycle.
func (l Life) Test(t *testing.T) {
	t.Helper()
	n := l.network(t)
	a := n.fresh("c1")
	n.must("status", n.each("STATUS", &Attachment{}, nil))
	n.must("add", n.add(a))
	n.must("check right after add", n.each("CHECK", a, nil))
	again := &Attachment{ContainerID: a.ContainerID, Netns: a.Netns, IfName: a.IfName}
	if err := n.add(again); err == nil {
		t.Error("a second ADD succeeded")
	}
	n.must("check after a refused add", n.each("CHECK", a, nil))
	n.must("del", n.each("DEL", a, nil))
	n.must("del again", n.each("DEL", a, nil))
	clean := HostState(t)
	same := func(what string) {
		t.Helper()
		if after := HostState(t); after != clean {
			t.Errorf("%s left\n%s\nbefore it was\n%s", what, after, clean)
		}
	}
	n.must("del without a result", n.each("DEL", again, nil))
	n.plan(a)
	same("a dry run")

	for _, b := range l.Breaks {
		t.Run(b.Name, func(t *testing.T) { n.broken(t, b) })
	}
	same("the breaks")

	gone := n.fresh("c2")
	n.must("add", n.add(gone))
	n.must("remove the namespace", nstest.RemoveNS(gone.Netns))
	gone.prev = nil
	n.must("del with the namespace gone and without a result", n.each("DEL", gone, nil))
	same("del with the namespace gone")

	a, other := n.fresh("c3"), n.fresh("c4")
	n.must("add", n.add(a))
	n.must("add of another container", n.add(other))
	n.must("gc", n.gc(a))
	n.must("check of what gc has to keep", n.each("CHECK", a, nil))
	n.must("gc of all", n.gc())
	n.must("del after gc", n.each("DEL", a, nil))
	same("gc")
}

// broken damages an attachment and checks that CHECK and repair report it.
func (n *network) broken(t *testing.T, b Break) {
	a := n.fresh("c1")
	n.must("add", n.add(a))
	b.Do(t, a)
	if err := n.each("CHECK", a, nil); err == nil || !regexp.MustCompile(b.Want).MatchString(err.Error()) {
		t.Errorf("check says %v, want %q", err, b.Want)
	}
	if b.Fix {
		for _, conf := range n.confs {
			if x := n.external(conf); x.Repairs() {
				_, err := x.Repair(t.Context(), n.owner(a), a.Netns, nil,
					extra.RepairRequest{Conf: n.stdin(conf, a, nil)})
				n.must("repair", err)
			}
		}
		n.must("check after repair", n.each("CHECK", a, nil))
	}
	n.must("del", n.each("DEL", a, nil))
	n.must("add again", n.add(a))
	n.must("check again", n.each("CHECK", a, nil))
	n.must("del again", n.each("DEL", a, nil))
}

func (n *network) owner(a *Attachment) spec.Owner {
	return spec.Owner{Network: n.confs[0].Name, ContainerID: a.ContainerID, IfName: a.IfName}
}

func (n *network) external(conf *spec.Conf) *extra.External {
	return extra.Ask(context.Background(), n.dir+"/"+conf.Type, invoke.Call{Path: []string{n.dir}})
}

// plan makes the dry run that `fairlead plan` shows.
func (n *network) plan(a *Attachment) {
	n.t.Helper()
	last := n.confs[len(n.confs)-1]
	x := n.external(last)
	if !x.Plans() {
		n.t.Errorf("%s: VERSION does not offer a dry run", last.Type)
		return
	}
	answer, err := x.Foresee(context.Background(), n.owner(a), a.Netns, nil,
		extra.PlanRequest{Conf: n.stdin(last, a, nil)})
	n.must("plan", err)
	n.t.Logf("plan:\n%s", strings.Join(answer.Resources, "\n"))
}

// TestKilled kills ADD of the last plugin at each system call that can change something. DEL must leave nothing behind.
// Call it in a test of its own.
func (l Life) TestKilled(t *testing.T) {
	t.Helper()
	n := l.network(t)
	a := n.fresh("warm")
	n.must("add", n.add(a))
	n.must("del", n.each("DEL", a, nil))
	Killed(t, func(netns string, under ...string) error {
		return n.add(&Attachment{ContainerID: "killed", Netns: netns, IfName: "eth0"}, under...)
	}, func(netns string) error {
		return n.each("DEL", &Attachment{ContainerID: "killed", Netns: netns, IfName: "eth0"}, nil)
	})
}
