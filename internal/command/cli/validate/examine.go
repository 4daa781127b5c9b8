package validate

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/target"
	"github.com/fairlead-cni/fairlead/internal/plainfile"
	"github.com/fairlead-cni/fairlead/internal/spelling"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// remark is an error or warning about a configuration file.
type remark struct {
	netconf.FileProblem
	Severity string `json:"severity"`
}

// The severities of remarks.
const (
	Error   = "error"   // an ADD fails, or a key is unknown and has no effect
	warning = "warning" // an ADD succeeds, but may not do what is meant
)

// examination examines one file. It reads the file as a runtime would, and lets each plugin of this project plan it.
type examination struct {
	Remarks []remark
	list    *spec.List // nil if the file cannot be read

	t       *target.Target
	version spec.Version
	prev    *spec.Result
	links   []resource.HostLink
	certain bool // the addresses and links that the plugins so far would make are known
	first   bool // no plugin was examined yet

	others []string // types of plugins that are not ours, whose keys are not known
}

// Examine examines a file with the text src. With alone, it does not look at the host: each type of plugin is taken
// as this project's, and warnings about the list are included.
func Examine(file string, src []byte, alone bool) *examination {
	e := &examination{certain: true, first: true, version: spec.Newest}
	s, err := newSieve(src)
	if err != nil {
		e.say(file, Error, err)
		return e
	}
	s.sift("", func(part []byte) (err error) { e.list, err = spec.ParseFile(file, part); return err }, nil)
	l := e.list
	if l == nil {
		l = &spec.List{CNIVersion: spec.Newest, Name: "network", File: file}
	}
	if v, err := spec.Select(l); err != nil {
		s.fault("", spec.Errorf(spec.CodeVersion, "cniVersion: %w", err))
	} else {
		e.version = v
	}
	e.t = &target.Target{Network: &netconf.Network{List: l}, Attachment: target.ExampleAttachment(), Offline: alone}
	if alone {
		e.ofList(file, s, l)
	}
	if s.count("plugins") > 0 {
		e.plugins(file, s, "plugins", nil)
	} else if l.Plugins != nil {
		e.plugin(file, s, "", nil)
	}
	e.faults(file, s)
	for _, drop := range l.DropIns() {
		e.dropIn(drop)
	}
	e.Remarks = slices.DeleteFunc(e.Remarks, func(r remark) bool {
		return r.Severity == warning && slices.ContainsFunc(e.Remarks, func(o remark) bool {
			return o.Severity == Error && o.File == r.File && o.Line == r.Line && o.Column == r.Column
		})
	})
	slices.SortStableFunc(e.Remarks, func(a, b remark) int {
		if a.File != b.File {
			return 0
		}
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return e
}

const tooNew = `podman 4 and containerd 1.6 and 1.7 refuse 1.1.0 here; for them too: ` +
	`"cniVersion": "1.0.0", "cniVersions": ["1.0.0", "1.1.0"]`

// ofList adds the warnings about a list.
func (e *examination) ofList(file string, s *sieve, l *spec.List) {
	for _, w := range l.Warnings {
		if errors.Is(w, spec.ErrMisspelt) {
			e.say(file, Error, w)
		} else {
			e.say(file, warning, w)
		}
	}
	if netconf.Newer(l) {
		e.place(file, warning, s.key("cniVersion"), tooNew)
	}
}

// dropIn examines a plugin in the folder beside a list.
func (e *examination) dropIn(file string) {
	src, err := plainfile.ReadLinked(file, plainfile.MaxSize)
	if err != nil {
		e.say(file, Error, err)
		return
	}
	s, err := newSieve(src)
	if err != nil {
		e.say(file, Error, err)
		return
	}
	e.plugin(file, s, "", nil)
	e.faults(file, s)
}

// mostPlugins limits how many plugins of a list are examined, because each one's place in the file is searched.
const mostPlugins = 256

// plugins examines the plugins of the list at a path.
func (e *examination) plugins(file string, s *sieve, path string, outer *spec.Conf) {
	n := s.count(path)
	for i := range min(n, mostPlugins) {
		e.plugin(file, s, fmt.Sprintf("%s[%d]", path, i), outer)
	}
	if n > mostPlugins {
		s.fault(path, spec.Errorf(spec.CodeConfig, "%d plugins: want at most %d", n, mostPlugins))
	}
}

// draft is what is known of a plugin while it is examined.
type draft struct {
	conf    *spec.Conf
	links   []resource.HostLink // the links after this plugin
	res     *spec.Result
	unknown map[string]string // messages about keys that the plugin does not know, by path
}

// plugin lets the plugin at a path plan its configuration. outer is the chain that contains the plugin, or nil.
func (e *examination) plugin(file string, s *sieve, path string, outer *spec.Conf) {
	d := draft{unknown: map[string]string{}}
	before := len(s.faults)
	sound := s.sift(path, func(part []byte) error { return e.plan(part, outer, &d) },
		func(error) bool { return d.conf != nil && !(e.certain && e.known(d.conf)) })
	for key, text := range d.unknown {
		if at := s.key(below(path, key)); len(s.faults) == before || !taken(s.faults, at) {
			at.path = s.key(path).path
			e.place(file, Error, at, text)
		}
	}
	if d.conf == nil {
		return
	}
	for _, typ := range []string{d.conf.Type, d.conf.IPAMType} {
		if sound && typ != "" && netconf.OfType(typ) == nil && !slices.Contains(e.others, typ) {
			e.others = append(e.others, typ)
		}
	}
	if sound && len(s.faults) == before {
		e.notes(file, s, path)
	}
	e.heads(s, path, d.conf)
	if d.conf.IsChain() {
		if err := d.conf.Undeclared(); err != nil {
			s.fault(path, err)
		}
		e.plugins(file, s, below(path, "plugins"), d.conf)
		return
	}
	e.certain = e.certain && sound && e.known(d.conf)
	e.links, e.prev = d.links, d.res
	if e.prev == nil {
		e.prev = &spec.Result{CNIVersion: e.version,
			Interfaces: []spec.Interface{{Name: e.t.IfName, Sandbox: e.t.Netns}}}
	}
}

func below(path, key string) string { return strings.TrimPrefix(path+"."+key, ".") }

// plan returns what is wrong with a plugin's configuration, if the plugin is of this project.
func (e *examination) plan(part []byte, outer *spec.Conf, d *draft) (err error) {
	if d.conf, err = spec.ParsePlugin(part, ""); err != nil {
		return err
	}
	if outer != nil {
		if args, told := outer.Object.Fold("args"); told {
			if err := d.conf.Object.Set("args", args); err != nil {
				return err
			}
		}
	}
	e.t.Notes, d.links, d.res = nil, e.links, e.prev
	if e.t.Offline {
		err = misnamed(d.conf)
	}
	p := netconf.OfType(d.conf.Type)
	if err != nil || p == nil {
		return err
	}
	answer, err := e.t.PlanOne(*p, nil, d.conf, e.version, e.prev, e.links)
	for _, n := range e.t.Notes {
		if n.Unknown != "" {
			d.unknown[n.Unknown] = n.Text
		}
	}
	if err == nil {
		d.links, d.res = answer.HostLinks, answer.Result
	}
	return err
}

// heads refuses a chained plugin as the first one.
func (e *examination) heads(s *sieve, path string, conf *spec.Conf) {
	if p := netconf.OfType(conf.Type); e.first && p != nil && p.Chained() {
		s.fault(path, spec.Errorf(spec.CodeConfig, "%s changes the interface of a plugin before it, and no plugin "+
			"is before it",
			conf.Type))
	}
	e.first = e.first && conf.IsChain()
}

// notes adds the warnings of the plugin at a path.
func (e *examination) notes(file string, s *sieve, path string) {
	for _, n := range e.t.Notes {
		if n.Unknown != "" {
			continue
		}
		at, text := s.locate(path, errors.New(n.Text))
		at.path = ""
		e.place(file, warning, at, text)
	}
}

// known reports whether the addresses that a plugin's configuration would bring are known.
func (e *examination) known(conf *spec.Conf) bool {
	if conf == nil {
		return false
	}
	res, _ := sdk.Forecast(plugin.All(), conf)
	return netconf.OfType(conf.Type) != nil && (conf.IPAMType == "" || res != nil && len(res.IPs) > 0)
}

// misnamed returns an error if the type of a plugin is probably a misspelt one of this project, or if that plugin
// cannot stand there. Other types may be plugins of other projects.
func misnamed(conf *spec.Conf) error {
	for _, at := range []struct {
		key, name string
		gives     bool
	}{{"type", conf.Type, false}, {"ipam.type", conf.IPAMType, true}} {
		var among []string
		for _, p := range plugin.All() {
			if p.Allocates() == at.gives {
				among = append(among, p.Name)
			}
		}
		p := netconf.OfType(at.name)
		near, slip := spelling.Nearest(at.name, among)
		switch {
		case p == nil && slip:
			return spec.Errorf(spec.CodeConfig, "%s: %q: no plugin of fairlead; did you mean %q?", at.key,
				at.name, near)
		case p == nil || p.Allocates() == at.gives:
		case at.gives:
			return netconf.NoAllocator(at.name)
		default:
			return spec.Errorf(spec.CodeConfig,
				"type: %q: allocates addresses and makes no interface; it belongs into \"ipam\" of an interface "+
					"plugin, such as bridge", at.name)
		}
	}
	return nil
}

// faults adds what a sieve found.
func (e *examination) faults(file string, s *sieve) {
	for _, f := range s.faults {
		f.File = file
		e.say(file, Error, f)
	}
}

func (e *examination) place(file, severity string, at place, text string) {
	if at.path != "" {
		text = at.path + ": " + text
	}
	e.say(file, severity, &spec.FileError{File: file, Line: at.line, Column: at.column, Err: errors.New(text)})
}

func (e *examination) say(file, severity string, err error) {
	p := netconf.ProblemOf(err)
	p.File = cmp.Or(p.File, file)
	e.Remarks = append(e.Remarks, remark{p, severity})
}

// taken reports whether there is a remark about that place already.
func taken(faults []*spec.FileError, at place) bool {
	return slices.ContainsFunc(faults, func(f *spec.FileError) bool { return f.Path == at.path })
}
