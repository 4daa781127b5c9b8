// Package sdk is the plugin author's side of CNI. A plugin says, as a pure function of its configuration
// and the request, what should exist; the package answers ADD, CHECK, DEL, GC, STATUS and VERSION with it.
package sdk

import (
	"slices"

	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Plugin is a name and what it wants. Make one with Interface, Chained, Allocator or Chain.
type Plugin struct {
	Name     string
	Synopsis string // for people, a line
	Conf     any    // the zero configuration, for documentation

	role    role
	args    []string // the keys of CNI_ARGS that it knows; nil: it does not look at CNI_ARGS
	more    func(*spec.Conf) []string
	observe bool // the addresses of its link are the kernel's doing

	plan planner
	owns func(*spec.Conf) []plan.Kind
	open func(*spec.Conf, *Request) (ipam.Allocator, []unknownKey, error)

	journal func(*spec.Conf) Journal // nil: calls are not written down
	inner   func(conf *spec.Conf, verb string) ([]Inner, []unknownKey, error)
}

type role int

const (
	makesLinks role = iota
	chained
	allocates
	chains
)

// A HostReader is a configuration with a field that no key sets and the host does, such as the driver of a device.
// ReadHost fills it in, once a call, before the plan function is asked, which is pure. DEL and GC do without.
type HostReader interface{ ReadHost() }

// A planner decodes the plugin's own configuration, and returns its plan function for it, which may be asked again.
type planner func(*spec.Conf, *Request) (asked func(*Request) (Answer, error), unknown []unknownKey, err error)

// Interface is a plugin that makes links and may ask an IPAM plugin for addresses. Its plan function is asked twice in
// ADD, before and after the addresses are known.
//
// Owns declares the kinds of all that the plan may have and that does not go with the container's namespace, in the
// order of the plan: DEL and GC follow from that, and never ask for a plan. The configuration is the zero value in GC
// and where it cannot be read; it is there for what the reference's plugins have made, which carries no mark. Nil
// declares none.
func Interface[C any](name, synopsis string,
	want func(C, *Request) (Answer, error), owns func(C) []plan.Kind) Plugin {
	return Plugin{Name: name, Synopsis: synopsis, Conf: *new(C), role: makesLinks, plan: planOf(want),
		owns: owner(owns)}
}

// Chained is a plugin that adds to what the plugins before it made: it needs a previous result and
// answers with it (clause P18). Owns is as in Interface.
func Chained[C any](name, synopsis string, want func(C, *Request) (Answer, error), owns func(C) []plan.Kind) Plugin {
	return Plugin{Name: name, Synopsis: synopsis, Conf: *new(C), role: chained, plan: planOf(want), owns: owner(owns)}
}

// Allocator is an IPAM plugin. Open may fail only for a bad configuration, and then returns what DEL and GC can do
// without one: whose addresses are whose has to be known without it.
func Allocator[C any](name, synopsis string, open func(C, *Request) (ipam.Allocator, error)) Plugin {
	return Plugin{Name: name, Synopsis: synopsis, Conf: *new(C), role: allocates,
		open: func(conf *spec.Conf, r *Request) (ipam.Allocator, []unknownKey, error) {
			var c C
			unknown, err := decode(conf, &c, true, r.verb)
			if err != nil {
				return nil, nil, err
			}
			a, err := open(c, r)
			if a != nil && r.removes() {
				err = nil
			}
			return a, unknown, err
		}}
}

func planOf[C any](want func(C, *Request) (Answer, error)) planner {
	return func(conf *spec.Conf, r *Request) (func(*Request) (Answer, error), []unknownKey, error) {
		c := new(C)
		unknown, err := decode(conf, c, false, r.verb)
		if h, ok := any(c).(HostReader); ok && err == nil {
			h.ReadHost()
		}
		return func(r *Request) (Answer, error) {
			own := *r
			own.IPs, own.Routes = slices.Clone(r.IPs), slices.Clone(r.Routes)
			w, err := want(*c, &own)
			if err == nil && r.verb != "STATUS" {
				w.Plan, err = w.Plan.Attaching()
			}
			if err != nil {
				return Answer{}, err
			}
			if w.IPs == nil {
				w.IPs = r.IPs
			}
			if w.Routes == nil {
				w.Routes = r.Routes
			}
			w.Plan = r.final(w.Plan)
			return w, nil
		}, unknown, err
	}
}

func owner[C any](owns func(C) []plan.Kind) func(*spec.Conf) []plan.Kind {
	return func(conf *spec.Conf) []plan.Kind {
		var c C
		if conf != nil {
			if _, err := decode(conf, &c, false, "DEL"); err != nil {
				c = *new(C)
			}
		}
		if owns == nil {
			return nil
		}
		return owns(c)
	}
}

// Kinds are what p declares that attachments of it may have. Conf is nil where there is no configuration to go by.
func (p Plugin) Kinds(conf *spec.Conf) []plan.Kind {
	if p.owns == nil {
		return nil
	}
	return p.owns(conf)
}

// KnowsArgs makes p look at CNI_ARGS: ADD and CHECK refuse keys that are not among these, unless
// IgnoreUnknown is given (clause P5).
func (p Plugin) KnowsArgs(keys ...string) Plugin {
	p.args = append([]string{"IgnoreUnknown"}, keys...)
	return p
}

// KnowsArgsOf makes p know those keys of CNI_ARGS too that a configuration names.
func (p Plugin) KnowsArgsOf(keys func(*spec.Conf) []string) Plugin {
	p.more = keys
	return p
}

// Observes makes p's result tell the addresses that the kernel itself put on the link.
func (p Plugin) Observes() Plugin {
	p.observe = true
	return p
}

// addresses reports whether p asks an IPAM plugin for addresses. Where the kernel gives them, there is nothing to be
// asked.
func (p Plugin) addresses(conf *spec.Conf) bool { return conf.IPAMType != "" && !p.observe }

// Allocates reports whether p is an IPAM plugin.
func (p Plugin) Allocates() bool { return p.role == allocates }

// Chains reports whether p runs other plugins, and so wants nothing itself.
func (p Plugin) Chains() bool { return p.role == chains }

// Chained reports whether p adds to what the plugins before it made.
func (p Plugin) Chained() bool { return p.role == chained }

// Plan is what p wants for r: the dry run. An IPAM plugin has none, nor has a chain, whose plugins have.
//
// Notes say which keys of the configuration it does not know, and what may have been meant, and which go without
// effect.
func (p Plugin) Plan(conf *spec.Conf, r *Request) (want Answer, notes []Note, err error) {
	var unknown []unknownKey
	switch {
	case p.plan != nil:
		var ask func(*Request) (Answer, error)
		if ask, unknown, err = p.plan(conf, r); err == nil {
			want, err = ask(r)
		}
	case p.inner != nil:
		_, unknown, err = p.inner(conf, r.verb)
	default:
		_, unknown, err = p.open(conf, r)
	}
	unknown = append(unknown, p.unread(conf)...)
	for _, u := range unknown {
		notes = append(notes, Note{Unknown: u.path, Text: u.String()})
	}
	for _, w := range want.Warnings {
		notes = append(notes, Note{Text: w})
	}
	if err == nil {
		err = refuse(conf, unknown)
	}
	return want, notes, err
}

// A Note is what is odd in a configuration that is used all the same.
type Note struct {
	Unknown string `json:"unknown,omitempty"` // the path of a key that nobody reads; empty: it is another thing
	Text    string `json:"text"`
}

// NewRequest is what p's plan function would be given for a call.
func (p Plugin) NewRequest(verb string, o spec.Owner, netns string, conf *spec.Conf,
	args [][2]string) (*Request, error) {
	r := &Request{Owner: o, verb: verb, Version: conf.CNIVersion.Or010(), Netns: netns, L3: p.addresses(conf),
		Prev: conf.PrevResult, conf: conf, args: args}
	if verb == "CHECK" && r.Prev != nil {
		r.IPs, r.Routes = r.ContainerIPs(), slices.Clone(r.Prev.Routes)
	}
	if p.role == makesLinks && !p.observe && !r.removes() {
		r.mac, r.hostMAC = identity.MAC("cont", o).String(), identity.MAC("host", o).String()
	}
	if p.args == nil || verb == "DEL" || verb == "GC" {
		return r, nil
	}
	lax := false
	var unknown []string
	for _, kv := range args {
		switch {
		case kv[0] == "IgnoreUnknown":
			v, err := parseBool(kv[1])
			if err != nil {
				return nil, spec.Errorf(spec.CodeEnvironment, "CNI_ARGS: IgnoreUnknown=%s: want 1, true, 0 or false",
					kv[1])
			}
			lax = v
		case !slices.Contains(p.args, kv[0]):
			unknown = append(unknown, kv[0])
		}
	}
	if len(unknown) > 0 && p.more != nil {
		named := p.more(conf)
		unknown = slices.DeleteFunc(unknown, func(key string) bool { return slices.Contains(named, key) })
	}
	if len(unknown) > 0 && !lax {
		return nil, spec.Errorf(spec.CodeEnvironment,
			"CNI_ARGS: %s does not know %q; it knows %q, and ignores others where IgnoreUnknown=true is among them",
			p.Name, unknown, p.args[1:])
	}
	return r, nil
}
