// Package names holds the names by which containers of a network find each other: records of attachments for the
// node's name server (`fairlead dns`), and the socket on which the server learns of a new record.
package names

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/record"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// Kept is the kind of these records in a record.Store.
const Kept = "names"

// A Record is what the name server knows about an attachment.
type Record struct {
	Network     string         `json:"network"`
	ContainerID string         `json:"containerID"`
	IfName      string         `json:"ifname"`
	Names       []string       `json:"names"` // the container's own, in lower case
	Aliases     []string       `json:"aliases,omitempty"`
	Domain      string         `json:"domain,omitempty"` // the names are in it, too
	Addrs       []netip.Prefix `json:"addrs"`            // of the container, each with its subnet on the host's link
	Gateways    []netip.Addr   `json:"gateways"`         // of the host, which the server listens on
	Upstream    []netip.Addr   `json:"upstream,omitempty"`
}

// Names is the record of an attachment, and a server that answers from it.
type Names struct {
	Owner    spec.Owner
	Names    []string // the container's own, in lower case: they come before aliases of other containers
	Aliases  []string // its other names, which others may have too
	Domain   string
	Addrs    []netip.Prefix
	Link     string       // on the host, that the container's packets come through; empty: none
	Gateways []netip.Addr // of the addresses; those that the host has on Link count
	Upstream []netip.Addr // what the server asks for all other names; none: no opinion
	DNS      spec.DNS     // what replaces the result's, but for Nameservers
}

func (n Names) String() string {
	words := []string{"names", strings.Join(n.Names, ",")}
	if len(n.Aliases) > 0 {
		words = append(words, "alias", strings.Join(n.Aliases, ","))
	}
	if n.Domain != "" {
		words = append(words, "domain", n.Domain)
	}
	for _, a := range n.Addrs {
		words = append(words, "addr", a.Addr().String())
	}
	for _, g := range n.Gateways {
		words = append(words, "server", g.String())
	}
	if n.Link != "" {
		words = append(words, "dev", n.Link)
	}
	for _, u := range n.Upstream {
		words = append(words, "upstream", u.String())
	}
	return strings.Join(words, " ")
}

// onLink returns the gateways that the host has on the link that leads to the container, and the container's addresses,
// each with the subnet that the host has on that link. A container may choose its gateway and the length of its prefix
// itself. So an address of another link is no gateway, and a subnet is what the host says.
func (n Names) onLink(w *kernel.World) (gateways []netip.Addr, addrs []netip.Prefix, err error) {
	link, on, err := n.link(w)
	why := fmt.Sprintf("%s leads to the container and does not have it (bridge: set isGateway)",
		cmp.Or(link.Name, "no link of the host"))
	for _, g := range n.Gateways {
		if err == nil && rtnl.HasAddr(on, g) {
			var other string
			if other, err = elsewhere(w, link.Index, g); other == "" {
				gateways = append(gateways, g)
			} else {
				why = fmt.Sprintf("%v is an address of %s too", g, other)
			}
		}
	}
	if err == nil && len(gateways) == 0 {
		err = spec.Errorf(spec.CodeConfig, "network %s has no gateway on this host (%s), so no name server can listen "+
			"for it: %s; give the network a gateway of its own, or leave out alias", n.Owner.Network,
			cmp.Or(listed(n.Gateways), "prevResult names none"), why)
	}
	for _, p := range n.Addrs {
		bits := 0
		for _, a := range on {
			if a.Prefix.Masked().Contains(p.Addr()) {
				bits = max(bits, a.Prefix.Bits())
			}
		}
		addrs = append(addrs, netip.PrefixFrom(p.Addr(), cmp.Or(bits, p.Addr().BitLen())))
	}
	return gateways, addrs, err
}

// link returns the link that leads to the container, and its addresses. To a port of Open vSwitch, that is the internal
// port of the bridge.
func (n Names) link(w *kernel.World) (l rtnl.Link, addrs []rtnl.Addr, err error) {
	bridge, err := resource.SwitchOf(w, n.Owner)
	l.Name = cmp.Or(bridge, n.Link)
	if l.Name == "" || err != nil {
		return l, nil, err
	}
	found, err := rtnl.LinkByName(w.Host, l.Name)
	if err != nil {
		return l, nil, resource.ExceptNoLink(err)
	}
	addrs, err = rtnl.Addrs(w.Host, found.Index)
	return *found, addrs, err
}

// elsewhere returns the name of another link whose own address a gateway is, such as the uplink's: plugins put any
// gateway on the container's link that is asked for. Bridges may share a gateway. So may veth pairs of the plugin ptp,
// whose host ends have no subnet.
func elsewhere(w *kernel.World, link int, gateway netip.Addr) (string, error) {
	holder, err := rtnl.HolderOf(w.Host, gateway)
	if err != nil || holder == link || holder == 0 {
		return "", err
	}
	l, err := rtnl.LinkByIndex(w.Host, holder)
	if err != nil {
		return "", resource.ExceptNoLink(err)
	}
	on, err := rtnl.Addrs(w.Host, holder)
	if l.Kind == "bridge" || l.Kind == "veth" && slices.ContainsFunc(on, func(a rtnl.Addr) bool {
		return a.Prefix.Addr() == gateway && a.Prefix.IsSingleIP()
	}) {
		return "", err
	}
	return l.Name, err
}

func listed(addrs []netip.Addr) string {
	texts := make([]string, len(addrs))
	for i, a := range addrs {
		texts[i] = a.String()
	}
	return strings.Join(texts, ", ")
}

// record returns the record to write. If n has no opinion of the upstream servers, those of the existing record stay.
func (n Names) record(w *kernel.World, was Record) (Record, error) {
	gateways, addrs, err := n.onLink(w)
	r := Record{Network: n.Owner.Network, ContainerID: n.Owner.ContainerID, IfName: n.Owner.IfName,
		Names: n.Names, Aliases: n.Aliases, Domain: n.Domain, Addrs: addrs, Gateways: gateways, Upstream: n.Upstream}
	if len(r.Upstream) == 0 {
		r.Upstream = was.Upstream
	}
	return r, err
}

// Ensure writes the record and asks the server to read it.
func (n Names) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	var was Record
	known, err := w.Store.Get(Kept, n.Owner, &was)
	if err != nil {
		return false, err
	}
	is, err := n.record(w, was)
	if err != nil {
		return false, err
	}
	if known && reflect.DeepEqual(is, was) {
		return false, n.ask(ctx, w)
	}
	if err := w.Store.Put(Kept, n.Owner, is); err != nil {
		return false, err
	}
	if err := n.ask(ctx, w); err != nil {
		back := w.Store.Delete(Kept, n.Owner)
		if known {
			back = w.Store.Put(Kept, n.Owner, was)
		}
		return false, errors.Join(err, back)
	}
	return true, nil
}

// ask has the server answer for the attachment.
func (n Names) ask(ctx context.Context, w *kernel.World) error {
	rec := RecordOf(n.Owner.Network, identity.OwnerHash(n.Owner))
	return Ask(ctx, Socket(w.Store), Question{Network: n.Owner.Network, Record: rec})
}

// Verify implements plan.Resource.
func (n Names) Verify(ctx context.Context, w *kernel.World) error {
	var was Record
	switch known, err := w.Store.Get(Kept, n.Owner, &was); {
	case err != nil:
		return err
	case !known:
		return spec.Missing("its record")
	}
	want, err := n.record(w, was)
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range []struct {
		name      string
		want, got any
	}{
		{"names", want.Names, was.Names}, {"aliases", want.Aliases, was.Aliases},
		{"domain", want.Domain, was.Domain}, {"addresses", want.Addrs, was.Addrs},
		{"servers", want.Gateways, was.Gateways}, {"upstream", want.Upstream, was.Upstream},
	} {
		if !reflect.DeepEqual(f.want, f.got) {
			errs = append(errs, fmt.Errorf("%s is %v, want %v", f.name, f.got, f.want))
		}
	}
	if err := n.ask(ctx, w); err != nil {
		errs = append(errs, spec.Errorf(spec.CodeUnavailable, "%w", err))
	}
	return errors.Join(errs...)
}

// Remove implements plan.Remover.
func (n Names) Remove(_ context.Context, w *kernel.World) error {
	return w.Store.Delete(Kept, n.Owner)
}

// Traits implements resource.Describer.
func (n Names) Traits() resource.Traits { return resource.Traits{Tell: n.tell} }

// tell makes the container ask the host's addresses, and complete names with the domain first.
func (n Names) tell(w *kernel.World, res *spec.Result) error {
	dns := &res.DNS
	servers, _, err := n.onLink(w)
	if err != nil {
		return err
	}
	dns.Nameservers = nil
	for _, a := range servers {
		dns.Nameservers = append(dns.Nameservers, a.String())
	}
	dns.Domain = cmp.Or(n.DNS.Domain, dns.Domain)
	if n.DNS.Search != nil {
		dns.Search = n.DNS.Search
	}
	if n.DNS.Options != nil {
		dns.Options = n.DNS.Options
	}
	if n.Domain != "" && !slices.Contains(dns.Search, n.Domain) {
		dns.Search = append([]string{n.Domain}, dns.Search...)
	}
	return nil
}

// RecordOf returns the name of an attachment's record in a Question.
func RecordOf(network string, owner [8]byte) string {
	n := identity.NetworkHash(network)
	return hex.EncodeToString(n[:]) + "." + hex.EncodeToString(owner[:])
}

// Socket returns the path of the socket of the server that answers from a Store.
func Socket(m record.Store) string { return filepath.Join(filepath.Dir(m.Dir), "dns.sock") }

// Kind is the plan.Kind of Names.
func Kind() plan.Kind { return kind{} }

type kind struct{}

// Name implements plan.Kind.
func (kind) Name() string { return "container names" }

// Owners implements plan.Kind.
func (kind) Owners(_ context.Context, w *kernel.World, network string) ([]plan.Tag, error) {
	records, err := w.Store.Records(Kept, network)
	tags := make([]plan.Tag, 0, len(records))
	for hash := range records {
		tags = append(tags, plan.Tag{Network: network, Hash: hash})
	}
	return tags, err
}

// Remove implements plan.Kind. The server notices that the record is gone.
func (kind) Remove(_ context.Context, w *kernel.World, tags ...plan.Tag) error {
	var errs []error
	for _, t := range tags {
		errs = append(errs, w.Store.DeleteOf(Kept, t.Network, t.Hash))
	}
	return errors.Join(errs...)
}

// A Server requires that the node's name server runs and can listen for a network.
type Server struct{ Network string }

func (s Server) String() string { return "name server for network " + s.Network }

// Verify implements plan.Resource.
func (s Server) Verify(ctx context.Context, w *kernel.World) error {
	return Ask(ctx, Socket(w.Store), Question{Network: s.Network})
}
