package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/spec"
)

// A guess is a kind that a plugin may be of, and the configuration by which it would show.
type guess struct {
	kind Kind
	conf string
}

// guesses are in an order in which no plugin is taken for another kind: an IPAM plugin alone gives addresses without
// an interface, and a plugin that makes an interface may accept prevResult, too.
func guesses() []guess {
	return []guess{
		{IPAM, `{"subnet": "10.91.0.0/28", "ranges": [[{"subnet": "10.91.0.0/28"}]]}`},
		{IPAM, `{"addresses": [{"address": "10.91.0.7/24"}]}`},
		{Interface, `{"ipam": "$ipam"}`},
		{Interface, `{}`},
		{Chained, `{}`},
	}
}

// identify finds out what the subject speaks and, unless the profile says so, what it does.
func (t *trial) identify() error {
	ctx, cancel := context.WithTimeout(t.ctx, t.limit)
	defer cancel()
	var err error
	t.subject.Versions, err = invoke.Versions(ctx, invoke.Run, t.subject.Path, invoke.Call{})
	if err != nil {
		t.subject.Versions = spec.Versions() // the checks of VERSION say what is wrong with the answer
	}
	if t.subject.Kind != "" {
		return nil
	}

	t.version = newest(t.subject.Versions)
	if err := t.prepare(); err != nil {
		return err
	}
	return t.recognise()
}

// recognise finds out what kind of plugin the subject is, by what an ADD of it does. What the profile says stays.
func (t *trial) recognise() error {
	var tried error
	given := t.subject.Plugin
	t.guesses = true
	defer func() { t.guesses = false }()
	for i, g := range guesses() {
		t.subject.Plugin = given
		t.subject.Kind = g.kind
		if len(given.Conf) == 0 {
			t.subject.Conf = json.RawMessage(g.conf)
		}
		t.containers = 0
		err := ended(func() {
			c := t.container(fmt.Sprintf("c%d", i))
			t.add(c)
			t.shows(g.kind, c)
		})
		var f *finding
		switch {
		case err == nil:
			return nil
		case !errors.As(err, &f):
			return err
		}
		tried = errors.Join(tried, fmt.Errorf("as a plugin of the kind %s with %s: %s", g.kind, t.subject.Conf, t.last))
	}
	return fmt.Errorf("its kind is unknown; write kind and conf in a profile (--profile): %w", tried)
}

// shows fails where a successful ADD did not do what a kind does.
func (t *trial) shows(kind Kind, c *container) {
	switch kind {
	case IPAM:
		t.last.expect(len(c.result.IPs) > 0 && len(c.result.Interfaces) == 0, "addresses and no interfaces")
	case Interface:
		expect(must(link(c.netns, c.ifName)) != nil, "the interface "+c.ifName, "none")
		called := slices.ContainsFunc(calls(), func(c called) bool { return c.Type == ipamType })
		t.last.expect(called || !t.subject.addressed(), "a call of the IPAM plugin")
	case Chained:
		t.last.expect(len(c.result.Interfaces) > 0, "the interfaces of prevResult")
	}
}
