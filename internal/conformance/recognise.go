package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
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

// recognise finds out what kind of plugin the subject is, by what an ADD of it does.
func recognise(t *trial) (Plugin, error) {
	var tried error
	t.guesses = true
	defer func() { t.guesses = false }()
	for i, g := range guesses() {
		t.subject.Plugin = Plugin{Kind: g.kind, Conf: json.RawMessage(g.conf)}
		t.containers = 0
		err := ended(func() {
			c := t.container(fmt.Sprintf("c%d", i))
			t.add(c)
			t.shows(g.kind, c)
		})
		var f *finding
		switch {
		case err == nil:
			return t.subject.Plugin, nil
		case !errors.As(err, &f):
			return Plugin{}, err
		}
		tried = errors.Join(tried, fmt.Errorf("as a plugin of the kind %s with %s: %s", g.kind, g.conf, t.last))
	}
	return Plugin{}, fmt.Errorf("its kind is unknown; write kind and conf in a profile (--profile): %w", tried)
}

// shows fails where a successful ADD did not do what a kind does.
func (t *trial) shows(kind Kind, c *container) {
	switch kind {
	case IPAM:
		t.last.expect(len(c.result.IPs) > 0 && len(c.result.Interfaces) == 0, "addresses and no interfaces")
	case Interface:
		expect(must(link(c.netns, c.ifName)) != nil, "the interface "+c.ifName, "none")
	case Chained:
		t.last.expect(len(c.result.Interfaces) > 0, "the interfaces of prevResult")
	}
}
