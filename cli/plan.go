package cli

import (
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
)

// A Step is what one plugin of a list would do.
type Step struct {
	Type      string   `json:"type"`
	Path      string   `json:"path,omitempty"`   // of the program that would run
	Opaque    string   `json:"opaque,omitempty"` // why what it would do cannot be said
	IPAM      string   `json:"ipam,omitempty"`
	Addresses []string `json:"addresses,omitempty"` // examples of what the IPAM plugin may give
	Resources []string `json:"resources,omitempty"` // in the words of ip(8) and nft(8), in order of creation
}

func (a *app) planCommand() *cobra.Command {
	var f attachmentFlags
	c := &cobra.Command{
		Use: "plan NET [NETNS]", GroupID: "look", Args: operands("NET [NETNS]"),
		Short: "Print what add would make, without making it",
		Long: `Print what attaching a network namespace to NET would make, in order, without making it. NET is the name of a
network, or the path of a file that defines one. Addresses are examples, because no address is allocated. The plan of a
plugin of another project is unknown. Missing plugins are named, with exit status 1, after the plans of the others.

What this host lacks now, such as a master, and ports that are in use (CAP_ARGS) are warnings only: the add may be on
another host. NETNS need not exist: names and MAC addresses are those that an add of it would make.`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := a.noteAbsent(args); err != nil {
				return err
			}
			if len(args) == 1 {
				args = append(args, exampleAttachment().Netns)
			}
			t, err := a.target(f, args)
			if err != nil {
				return err
			}
			missing := errors.Join(t.missing()...)
			steps, err := t.plan()
			if err != nil {
				return errors.Join(missing, err)
			}
			for _, note := range t.notes {
				a.note("warning: %s: %s", note.plugin, note.Text)
			}
			for _, note := range append(t.undeclared(), t.lacks(a.interruptible())...) {
				a.note("warning: %s", note)
			}
			if a.json() {
				return errors.Join(missing, printJSON(a.stdout, struct {
					attached
					Plugins []Step `json:"plugins"`
				}{t.document(), steps}))
			}
			s := a.style(a.stdout)
			t.tree(s, steps).print(a.stdout, s)
			return missing
		},
		ValidArgsFunction: completeTarget,
	}
	f.register(c)
	return c
}

// tree is a plan as it is printed.
func (t *target) tree(s style, steps []Step) *tree {
	root := &tree{text: sprintf("%s %s", s.bold(t.Name), s.dim("attaches "+t.IfName+" of "+t.Netns))}
	for _, st := range steps {
		node := root.add("%s %s", s.bold(st.Type), s.dim(st.Path))
		if st.Opaque != "" {
			node.add("%s", s.doubt("opaque: "+st.Opaque))
		}
		if st.IPAM != "" {
			ipam := node.add("address from %s", st.IPAM)
			for _, addr := range st.Addresses {
				ipam.add("such as %s", addr)
			}
		}
		for _, r := range st.Resources {
			node.add("%s", r)
		}
	}
	return root
}

// Plan is what `fairlead plan` says of l where a runtime gives these capability arguments, for the plugins' reference
// pages.
func Plan(l *spec.List, capabilities map[string]any) ([]Step, error) {
	t := &target{network: &network{List: l, builtIn: true}, Attachment: exampleAttachment()}
	t.Capabilities = capabilities
	if err := errors.Join(t.missing()...); err != nil {
		return nil, err
	}
	return t.plan()
}

// exampleAttachment is of a container that there is not.
func exampleAttachment() attach.Attachment {
	path := filepath.Join(netnsDir, "example")
	return attach.Attachment{ContainerID: containerID(path), Netns: path, IfName: "eth0"}
}

// every is each plugin of n, of a chain that one and those in it.
func (n *network) every() []*spec.Conf {
	all := slices.Clone(n.Plugins)
	if out := n.WrittenOut(); out != n.List {
		for _, p := range out.Plugins {
			if !slices.Contains(all, p) {
				all = append(all, p)
			}
		}
	}
	return all
}

// missing are the plugins of n that are nowhere.
func (n *network) missing() (errs []error) {
	for i, p := range n.every() {
		if err := n.find(p.Type); err != nil {
			errs = append(errs, fmt.Errorf("plugins[%d]: %w", i, err))
		}
		if err := n.findIPAM(p); err != nil {
			errs = append(errs, fmt.Errorf("plugins[%d]: %w", i, err))
		}
	}
	return errs
}

func (n *network) find(typ string) error {
	dirs, itself := search(n)
	path, err := invoke.Find(typ, dirs)
	if err == nil && chmod(path) != "" {
		return fail(exitFailure, chmod(path), "find plugin %q: %s is not executable", typ, path)
	}
	var own []string
	for _, p := range plugin.All() {
		own = append(own, p.Name)
	}
	if err == nil || itself && slices.Contains(own, typ) {
		return nil
	}
	if near, ok := spec.Nearest(typ, own); ok && itself {
		return fmt.Errorf("find plugin %q: %w; did you mean %q?", typ, invoke.ErrNotFound, near)
	}
	return err
}

// chmod is how a plugin's file becomes executable, empty where it is.
func chmod(path string) string {
	if st, err := os.Stat(path); err != nil || st.Mode()&0o111 != 0 {
		return ""
	}
	return "`chmod +x " + path + "`"
}

// findIPAM finds the IPAM plugin of p. Ours need no file of an allocator that is ours.
func (n *network) findIPAM(p *spec.Conf) error {
	if p.IPAMType == "" {
		return nil
	}
	all := plugin.All()
	i := slices.IndexFunc(all, func(q sdk.Plugin) bool { return q.Name == p.IPAMType })
	dirs, _ := search(n)
	path, err := invoke.Find(p.Type, dirs)
	if i < 0 || err == nil && !ours(path) {
		return n.find(p.IPAMType)
	}
	if !all[i].Allocates() {
		return noAllocator(p.IPAMType)
	}
	return nil
}

func noAllocator(name string) error {
	return spec.Errorf(spec.CodeConfig,
		"ipam.type: %q: makes interfaces and gives no addresses; name an IPAM plugin, such as host-local", name)
}

// plan asks each plugin of the list that is ours, in this process, for its plan. What is missing is passed over.
func (t *target) plan() ([]Step, error) {
	if err := t.headless(); err != nil {
		return nil, err
	}
	all := plugin.All()
	var prev *spec.Result
	var links []sdk.HostLink
	var steps []Step
	dirs, itself := search(t.network)
	version, err := spec.Select(t.List)
	if err != nil {
		return nil, err
	}
	for _, p := range t.WrittenOut().Plugins {
		st := Step{Type: p.Type, IPAM: p.IPAMType}
		i := slices.IndexFunc(all, func(q sdk.Plugin) bool { return q.Name == p.Type })
		st.Path, err = invoke.Find(p.Type, dirs)
		switch {
		case err != nil && i >= 0 && itself:
			st.Path = "fairlead itself"
		case err != nil && i >= 0:
			st.Opaque = "not found; fairlead's own would do this"
		case err != nil:
			st.Opaque = "not found"
		case i < 0:
			st.Opaque = "no plugin of fairlead"
		case !ours(st.Path):
			st.Opaque = "another program of that name; fairlead's own would do this"
		}
		if x := t.external(st); x.Plans() {
			st.Opaque = ""
			a, err := t.planExternal(x, p, version, prev, links)
			if err != nil {
				return nil, fmt.Errorf("plugin %s: %w", p.Type, err)
			}
			st.Resources, prev, links = a.Resources, a.Result, a.HostLinks
		} else if i >= 0 {
			var want plan.Plan
			if want, prev, err = t.planOne(all[i], p, version, prev, links); err != nil {
				return nil, fmt.Errorf("plugin %s: %w", p.Type, err)
			}
			for _, r := range want {
				if sdk.Clears(r) {
					continue
				}
				st.Resources = append(st.Resources, r.String())
			}
			links = sdk.LinksOf(links, want)
		}
		if p.IPAMType != "" && prev != nil {
			for _, ip := range prev.IPs {
				st.Addresses = append(st.Addresses, ip.Address.String())
			}
		}
		steps = append(steps, st)
	}
	return steps, nil
}

// headless is an error if the first of n's plugins has nothing to add to, so that every ADD fails.
func (n *network) headless() error {
	p := n.WrittenOut().Plugins[0]
	if !slices.ContainsFunc(plugin.All(), func(q sdk.Plugin) bool { return q.Name == p.Type && q.Chained() }) {
		return nil
	}
	return spec.Errorf(spec.CodeConfig, "plugins[0]: %s adds to what a plugin before it made, and is the first", p.Type)
}

// ours reports whether all plugins of n are that are found.
func (n *network) ours() bool {
	dirs, _ := search(n)
	return !slices.ContainsFunc(n.every(), func(p *spec.Conf) bool {
		path, err := invoke.Find(p.Type, dirs)
		return err == nil && !ours(path)
	})
}

// warnings are what is odd in n's file, without what our plugins say of their keys.
func (n *network) warnings() []error {
	unread := func(w error) bool { return errors.Is(w, spec.ErrUnread) && n.ours() && len(n.missing()) == 0 }
	return slices.DeleteFunc(slices.Clone(n.Warnings), unread)
}

// tried is which plugins of a network are missing, what ours have against its configuration, and which of its keys
// they do not know. Where others would run, they are to be asked.
func (n *network) tried() (problems []error) {
	for _, err := range n.missing() {
		text := err.Error()
		if f := (*failure)(nil); errors.As(err, &f) {
			text += ": " + f.hint
		}
		problems = append(problems, &spec.FileError{File: n.File, Err: fmt.Errorf("network %s: %s", n.Name, text)})
	}
	if !n.ours() {
		return problems
	}
	src := n.Raw
	if n.File != "" {
		var err error
		if src, err = spec.ReadLinked(n.File, spec.MaxFile); err != nil {
			return append(problems, err)
		}
	}
	for _, r := range examine(n.File, src, false).remarks {
		problems = append(problems, &spec.FileError{File: r.File, Line: r.Line, Column: r.Column,
			Err: fmt.Errorf("network %s: %s", n.Name, r.Problem)})
	}
	return problems
}

// planOne is what one plugin wants, and the result that the next one would be given.
func (t *target) planOne(
	p sdk.Plugin, conf *spec.Conf, version spec.Version, prev *spec.Result, links []sdk.HostLink,
) (plan.Plan, *spec.Result, error) {
	raw, err := t.request(conf, version)
	if err != nil {
		return nil, nil, err
	}
	if conf, err = spec.ParseConf(raw); err != nil {
		return nil, nil, err
	}
	conf.PrevResult = prev
	owner := spec.Owner{Network: t.Name, ContainerID: t.ContainerID, IfName: t.IfName}
	r, err := p.NewRequest("ADD", owner, t.Netns, conf, t.Args)
	if err != nil {
		return nil, nil, err
	}
	r.HostLinks = slices.Clone(links)
	if t.offline || t.findIPAM(conf) == nil {
		r.IPs, r.Routes = example(conf)
	}
	answer, notes, err := p.Plan(conf, r)
	for _, q := range plugin.All() {
		if err == nil && q.Name == conf.IPAMType && q.Allocates() {
			var more []sdk.Note
			_, more, err = q.Plan(conf, r)
			notes = append(notes, more...)
			if err == nil && len(r.IPs) == 0 {
				err = t.allocates(q, conf)
			}
		}
	}
	for _, note := range notes {
		t.notes = append(t.notes, noted{p.Name, note})
	}
	if err != nil {
		return answer.Plan, prev, err
	}
	return answer.Plan, r.Foreseen(answer), nil
}

// A noAddress is why an allocator gives nobody an address.
type noAddress struct{ error }

func (e noAddress) Unwrap() error { return e.error }

// allocates says why q gives nobody an address, where that is known. The runtime may say the ranges.
func (t *target) allocates(q sdk.Plugin, conf *spec.Conf) error {
	if _, given := t.Capabilities["ipRanges"]; conf.Capabilities["ipRanges"] && !given {
		return nil
	}
	l, err := q.Ledger(conf, false)
	if l == nil || err != nil {
		return err
	}
	if g, ok := l.(ipam.Gatewayer); t.offline && (!ok || len(g.Gateways()) > 0) {
		return nil // without a range it says so before it looks at leases
	}
	if err := l.Status(context.Background(), t.Name); err != nil {
		return noAddress{err}
	}
	return nil
}

// request is what the plugin would get on stdin, but for prevResult.
func (t *target) request(conf *spec.Conf, version spec.Version) ([]byte, error) {
	o := conf.Object
	if err := o.Set("name", t.Name); err != nil {
		return nil, err
	}
	if err := o.Set("cniVersion", version); err != nil {
		return nil, err
	}
	given := map[string]any{}
	for name, value := range t.Capabilities {
		if conf.Capabilities[name] {
			given[name] = value
		}
	}
	if len(given) > 0 {
		if err := o.Set("runtimeConfig", given); err != nil {
			return nil, err
		}
	}
	return o.MarshalJSON()
}

// example is what the IPAM plugin of a configuration may answer, as far as that can be read off it.
func example(c *spec.Conf) (ips []spec.IP, routes []spec.Route) {
	raw, ok := c.Object.Get("ipam")
	if !ok {
		return nil, nil
	}
	var conf struct {
		ipam.Range
		Ranges    [][]ipam.Range
		Reserved  []string
		Addresses []struct {
			Address netip.Prefix
			Gateway netip.Addr
		}
		Routes []struct {
			Dst netip.Prefix
			GW  netip.Addr
		}
	}
	if json.Unmarshal(raw, &conf) != nil {
		return nil, nil // the plugin will say what is wrong
	}
	if conf.Range != (ipam.Range{}) {
		conf.Ranges = append([][]ipam.Range{{conf.Range}}, conf.Ranges...)
	}
	var reserved []netip.Prefix
	for _, r := range conf.Reserved {
		if p, err := ipam.ParseReserved(r); err == nil {
			reserved = append(reserved, p)
		}
	}
	for _, ranges := range conf.Ranges {
		if sets, err := ipam.Complete([]ipam.Set{{Ranges: ranges}}); err == nil {
			if ip, ok := first(sets[0], ipam.Union(reserved)); ok {
				ips = append(ips, ip)
			}
		}
	}
	for _, a := range conf.Addresses {
		ips = append(ips, spec.IP{Address: a.Address, Gateway: a.Gateway})
	}
	for _, r := range conf.Routes {
		routes = append(routes, spec.Route{Dst: r.Dst, GW: r.GW})
	}
	return ips, routes
}

// first is the address that s gives out where nobody has one yet.
func first(s ipam.Set, reserved ipam.Reserved) (ip spec.IP, ok bool) {
	for _, span := range reserved.Cut(s.After(netip.Addr{})) {
		a := span.First
		if a == span.Gateway {
			a = a.Next()
		}
		if r, found := s.Find(a); found && !span.Last.Less(a) {
			return spec.IP{Address: netip.PrefixFrom(a, r.Subnet.Bits()), Gateway: r.Gateway}, true
		}
	}
	return spec.IP{}, false
}

// ours reports whether the program at path is of this project, whatever its name and version.
func ours(path string) bool {
	info, err := buildinfo.ReadFile(path)
	return err == nil && strings.HasPrefix(info.Path, "github.com/fairlead-cni/fairlead/cmd/")
}
