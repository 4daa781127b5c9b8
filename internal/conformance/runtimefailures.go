package conformance

import (
	"slices"

	"github.com/fairlead-cni/fairlead/spec"
)

// faulty is the network whose plugin b fails at a verb.
func faulty(verb string) diskNetwork {
	e := spec.Error{Code: 142, Msg: "the plugin in the middle fails"}
	return diskNetwork{plugins: map[string]map[string]any{"b": orderKey(order{Fail: map[string]spec.Error{verb: e}})}}
}

// said fails where the error of the plugin in the middle did not come out.
func said(a *answer) {
	a.expect(a.mentions("the plugin in the middle fails"), "the message of the plugin's error")
}

func addStops(t *trial) {
	log := t.breaks("add", t.beginning(faulty("ADD")))
	ordered(slices.DeleteFunc(log, func(c called) bool { return c.Verb != "ADD" }), "ADD a, ADD b")
	said(t.last)
}

func delStops(t *trial) {
	c, _ := t.running(faulty("DEL"))
	ordered(t.breaks("del", c), "DEL c, DEL b")
	said(t.last)
}

func gcGoesOn(t *trial) {
	c, _ := t.running(faulty("GC"))
	ordered(t.breaks("gc", c), "GC a, GC b, GC c")
	said(t.last)
}

func failedAddUndone(t *trial) {
	ordered(t.breaks("add", t.beginning(faulty("ADD"))), "ADD a, ADD b, DEL c, DEL b, DEL a")
}

func missingPlugin(t *trial) {
	t.breaks("add", t.beginning(diskNetwork{plugins: map[string]map[string]any{"b": {"type": "conformance-none"}}}))
	t.last.expect(t.last.mentions("conformance-none"), "an error that names conformance-none")
}

func badEnds(t *trial) {
	for i, o := range []order{{Print: map[string]string{"ADD": "no JSON"}}, {Kill: []string{"ADD"}},
		{Exit: map[string]string{"ADD": "the disk is full"}}} {
		diskNetwork{plugins: map[string]map[string]any{"b": orderKey(o)}}.write()
		t.breaks("add", t.container("c"+itoa(i)))
		for _, word := range o.Exit {
			t.last.expect(t.last.mentions(word), "what the plugin printed on stderr, "+quoted(word))
		}
	}
}
