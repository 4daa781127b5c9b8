package conformance

import (
	"github.com/fairlead-cni/fairlead/spec"
)

// faulty is the network whose plugin b fails at a verb.
func faulty(verb string) diskNetwork {
	e := spec.Error{Code: 142, Msg: "the plugin in the middle fails"}
	return diskNetwork{plugins: map[string]map[string]any{"b": told(order{Fail: map[string]spec.Error{verb: e}})}}
}

// said is the complaint that the error of the plugin in the middle did not come out.
func said(a *answer) error {
	if !a.mentions("the plugin in the middle fails") {
		return differs("the message of the plugin's error", "%s", a)
	}
	return nil
}

func addStops(t *trial) error {
	c, err := t.beginning(faulty("ADD"))
	if err != nil {
		return err
	}
	log, a, err := t.breaks("add", c)
	if err != nil {
		return err
	}
	var adds []called
	for _, c := range log {
		if c.Verb == "ADD" {
			adds = append(adds, c)
		}
	}
	return first(ordered(adds, "ADD a, ADD b"), said(a))
}

func delStops(t *trial) error {
	c, _, err := t.running(faulty("DEL"))
	if err != nil {
		return err
	}
	log, a, err := t.breaks("del", c)
	return first(err, ordered(log, "DEL c, DEL b"), saidOr(a, err))
}

// saidOr is said, unless there is no answer.
func saidOr(a *answer, err error) error {
	if err != nil {
		return err
	}
	return said(a)
}

func gcGoesOn(t *trial) error {
	c, _, err := t.running(faulty("GC"))
	if err != nil {
		return err
	}
	log, a, err := t.breaks("gc", c)
	return first(err, ordered(log, "GC a, GC b, GC c"), saidOr(a, err))
}

func failedAddUndone(t *trial) error {
	c, err := t.beginning(faulty("ADD"))
	if err != nil {
		return err
	}
	log, _, err := t.breaks("add", c)
	return first(err, ordered(log, "ADD a, ADD b, DEL c, DEL b, DEL a"))
}

func missingPlugin(t *trial) error {
	c, err := t.beginning(diskNetwork{plugins: map[string]map[string]any{"b": {"type": "conformance-none"}}})
	if err != nil {
		return err
	}
	_, a, err := t.breaks("add", c)
	if err == nil && !a.mentions("conformance-none") {
		err = differs("an error that names conformance-none", "%s", a)
	}
	return err
}

func badEnds(t *trial) error {
	for i, o := range []order{{Print: map[string]string{"ADD": "no JSON"}}, {Kill: []string{"ADD"}},
		{Exit: map[string]string{"ADD": "the disk is full"}}} {
		if err := (diskNetwork{plugins: map[string]map[string]any{"b": told(o)}}).written(); err != nil {
			return err
		}
		c, err := t.container("c" + itoa(i))
		if err != nil {
			return err
		}
		_, a, err := t.breaks("add", c)
		if err != nil {
			return err
		}
		for _, word := range o.Exit {
			if !a.mentions(word) {
				return differs("what the plugin printed on stderr, "+quoted(word), "%s", a)
			}
		}
	}
	return nil
}
