package target

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/term"
	"github.com/fairlead-cni/fairlead/internal/extra"
	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// Step is what one plugin of a list would do.
type Step struct {
	Type      string   `json:"type"`
	Path      string   `json:"path,omitempty"`   // of the program that would run
	Opaque    string   `json:"opaque,omitempty"` // why its plan is unknown
	IPAM      string   `json:"ipam,omitempty"`
	Addresses []string `json:"addresses,omitempty"` // examples of addresses that the IPAM plugin may give
	Resources []string `json:"resources,omitempty"` // in the words of ip(8) and nft(8), in the order of creation
}

// Tree returns a plan in the form in which it is printed.
func (t *Target) Tree(s term.Style, steps []Step) *term.Tree {
	root := &term.Tree{Text: term.Sprintf("%s %s", s.Bold(t.Name), s.Dim("attaches "+t.IfName+" of "+t.Netns))}
	for _, st := range steps {
		node := root.Add("%s %s", s.Bold(st.Type), s.Dim(st.Path))
		if st.Opaque != "" {
			node.Add("%s", s.Doubt("opaque: "+st.Opaque))
		}
		if st.IPAM != "" {
			ipam := node.Add("address from %s", st.IPAM)
			for _, addr := range st.Addresses {
				ipam.Add("such as %s", addr)
			}
		}
		for _, r := range st.Resources {
			node.Add("%s", r)
		}
	}
	return root
}

// Plan returns the plan of l with these capability arguments, for the reference pages of plugins.
func Plan(l *spec.List, capabilities map[string]any) ([]Step, error) {
	t := &Target{Network: &netconf.Network{List: l, BuiltIn: true}, Attachment: ExampleAttachment()}
	t.Capabilities = capabilities
	if err := errors.Join(t.Missing()...); err != nil {
		return nil, err
	}
	return t.plan(nil)
}

// ExampleAttachment returns an attachment of a container that does not exist.
func ExampleAttachment() attach.Attachment {
	path := filepath.Join(attached.NetnsDir, "example")
	return attach.Attachment{ContainerID: attached.ContainerID(path), Netns: path, IfName: "eth0"}
}

// Plan asks each plugin of this project in the list for its plan, in this process. A missing plugin is skipped. It
// changes nothing, and looks at what the plugins require of this host.
func (t *Target) Plan() ([]Step, error) {
	host, err := kernel.Open("")
	if errors.Is(err, errors.ErrUnsupported) { // under an emulator, which is no host of containers
		return t.plan(nil)
	}
	if err != nil {
		return nil, err
	}
	defer host.Close()
	return t.plan(host)
}

func (t *Target) plan(host *kernel.NS) ([]Step, error) {
	if err := t.Headless(); err != nil {
		return nil, err
	}
	all := plugin.All()
	var prev *spec.Result
	var links []resource.HostLink
	var steps []Step
	dirs, itself := netconf.Search(t.Network)
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
			st.Opaque = "not found; fairlead's own plugin would do this"
		case err != nil:
			st.Opaque = "not found"
		case i < 0:
			st.Opaque = "not a plugin of fairlead"
		case !netconf.OurProgram(st.Path):
			st.Opaque = "another program of that name; fairlead's own plugin would do this"
		}
		if x := t.external(st); x.Plans() {
			st.Opaque = ""
			a, err := t.planExternal(x, p, version, prev, links)
			if err != nil {
				return nil, fmt.Errorf("plugin %s: %w", p.Type, err)
			}
			st.Resources, prev, links = a.Resources, a.Result, a.HostLinks
		} else if i >= 0 {
			a, err := t.PlanOne(all[i], host, p, version, prev, links)
			if err != nil {
				return nil, fmt.Errorf("plugin %s: %w", p.Type, err)
			}
			t.lack(p.Type, a.Unmet)
			st.Resources, prev, links = a.Resources, a.Result, a.HostLinks
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

// PlanOne returns what one plugin would do. With a host, the answer says what that lacks.
func (t *Target) PlanOne(
	p sdk.Plugin, host *kernel.NS, conf *spec.Conf, version spec.Version, prev *spec.Result, links []resource.HostLink,
) (*extra.PlanAnswer, error) {
	raw, err := t.request(conf, version)
	if err != nil {
		return nil, err
	}
	if conf, err = spec.ParseConf(raw); err != nil {
		return nil, err
	}
	conf.PrevResult = prev
	owner := spec.Owner{Network: t.Name, ContainerID: t.ContainerID, IfName: t.IfName}
	r, err := p.NewRequest("ADD", owner, t.Netns, conf, t.Args)
	if err != nil {
		return nil, err
	}
	r.HostLinks = links
	if t.Offline || t.FindIPAM(conf) == nil {
		if res, _ := sdk.Forecast(plugin.All(), conf); res != nil {
			r.IPs, r.Routes = res.IPs, res.Routes
		}
	}
	answer, err := p.Foresee(context.Background(), plugin.All(), host, r)
	for _, q := range plugin.All() {
		if err == nil && q.Name == conf.IPAMType && q.Allocates() {
			var more []extra.Note
			_, more, err = q.Plan(conf, r)
			answer.Notes = append(answer.Notes, more...)
			if err == nil && len(r.IPs) == 0 {
				err = t.allocates(q, conf)
			}
		}
	}
	for _, note := range answer.Notes {
		t.Notes = append(t.Notes, noted{p.Name, note})
	}
	return answer, err
}

// lack takes down what a plugin requires and this host lacks.
func (t *Target) lack(typ string, unmet []string) {
	for _, text := range unmet {
		t.unmet = append(t.unmet, typ+": "+text)
	}
}

// noAddress is why an IPAM plugin allocates no address at all.
type noAddress struct{ error }

func (e noAddress) Unwrap() error { return e.error }

// allocates returns why q allocates no address, if that is known. The runtime may pass the ranges.
func (t *Target) allocates(q sdk.Plugin, conf *spec.Conf) error {
	if _, given := t.Capabilities["ipRanges"]; conf.Capabilities["ipRanges"] && !given {
		return nil
	}
	l, err := q.Ledger(conf, false)
	if l == nil || err != nil {
		return err
	}
	if g, ok := l.(ipam.Gatewayer); t.Offline && (!ok || len(g.Gateways()) > 0) {
		return nil // without a range, it fails before it reads leases
	}
	if err := l.Status(context.Background(), t.Name); err != nil {
		return noAddress{err}
	}
	return nil
}
