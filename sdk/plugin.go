// Package sdk is the plugin author's side of CNI. A plugin says, as a pure function of its configuration
// and the request, what should exist; the package answers ADD, CHECK, DEL, GC, STATUS and VERSION with it.
package sdk

import (
	"slices"

	"github.com/fairlead-cni/fairlead/internal/extra"
	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Plugin is a CNI plugin: a name and a plan function. Make one with Interface, Chained, Allocator or Chain.
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

// A planner decodes the configuration of a plugin and returns the plan function for it, which may be called several
// times.
type planner func(*spec.Conf, *Request) (asked func(*Request) (Answer, error), unknown []unknownKey, err error)

// Interface returns a plugin that makes links and may use an IPAM plugin. ADD calls its plan function want twice:
// before and after the addresses are known. Tags of the fields of C say what a key takes: docs/plugin-author.md lists
// them.
//
// Owns declares the kinds of all resources in the plan that do not end with the container's namespace, in the order of
// the plan. DEL and GC work by these kinds alone and never call want. In GC, and if the configuration cannot be read,
// owns gets the zero value. Kinds need the configuration only to find what the reference's plugins made, because that
// carries no mark. A nil owns declares no kinds.
func Interface[C any](name, synopsis string,
	want func(C, *Request) (Answer, error), owns func(C) []plan.Kind) Plugin {
	return Plugin{Name: name, Synopsis: synopsis, Conf: *new(C), role: makesLinks, plan: planOf(want),
		owns: owner(owns)}
}

// Chained returns a plugin that adds to what the previous plugins made. It requires a previous result and returns it
// (clause P18). Owns is as in Interface.
func Chained[C any](name, synopsis string, want func(C, *Request) (Answer, error), owns func(C) []plan.Kind) Plugin {
	return Plugin{Name: name, Synopsis: synopsis, Conf: *new(C), role: chained, plan: planOf(want), owns: owner(owns)}
}

// Allocator returns an IPAM plugin. Open may fail only for an invalid configuration. It then also returns an allocator
// for DEL and GC, which must work without a valid configuration.
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

// Kinds returns the kinds that p declares for its attachments. Conf is nil if there is no configuration.
func (p Plugin) Kinds(conf *spec.Conf) []plan.Kind {
	if p.owns == nil {
		return nil
	}
	return p.owns(conf)
}

// KnowsArgs makes ADD and CHECK of p refuse keys of CNI_ARGS other than these, unless CNI_ARGS contains IgnoreUnknown
// (clause P5).
func (p Plugin) KnowsArgs(keys ...string) Plugin {
	p.args = append([]string{"IgnoreUnknown"}, keys...)
	return p
}

// KnowsArgsOf adds keys of CNI_ARGS that the configuration names to those that p knows.
func (p Plugin) KnowsArgsOf(keys func(*spec.Conf) []string) Plugin {
	p.more = keys
	return p
}

// Observes makes p report in its result the addresses that the kernel itself added to the link.
func (p Plugin) Observes() Plugin {
	p.observe = true
	return p
}

// addresses reports whether p calls an IPAM plugin. A plugin that observes the kernel's addresses does not.
func (p Plugin) addresses(conf *spec.Conf) bool { return conf.IPAMType != "" && !p.observe }

// Allocates reports whether p is an IPAM plugin.
func (p Plugin) Allocates() bool { return p.role == allocates }

// Chains reports whether p runs other plugins, and so has no plan of its own.
func (p Plugin) Chains() bool { return p.role == chains }

// Chained reports whether p adds to what the previous plugins made.
func (p Plugin) Chained() bool { return p.role == chained }

// Plan returns what p would make for r (dry run). IPAM plugins and chains have no plan of their own.
//
// Notes lists unknown keys of the configuration, with suggestions, and keys that have no effect.
func (p Plugin) Plan(conf *spec.Conf, r *Request) (want Answer, notes []extra.Note, err error) {
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
		notes = append(notes, extra.Note{Unknown: u.path, Text: u.String()})
	}
	for _, w := range want.Warnings {
		notes = append(notes, extra.Note{Text: w})
	}
	if err == nil {
		err = refuse(conf, unknown)
	}
	return want, notes, err
}

// NewRequest returns the request that p's plan function would get for a call.
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
	if p.args == nil || r.removes() {
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
