package policy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/procsys"
	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/resource/filter/iptables"
	"github.com/fairlead-cni/fairlead/spec"
)

// An IngressIPTables is an Ingress in iptables, in the reference's chains. It belongs to the link. It is removed with
// the last attachment that was made with it, by Reference, or by GC once the link is gone.
type IngressIPTables struct {
	Owner  spec.Owner
	Link   string // as in Ingress
	Policy string
	V4, V6 bool           // the families of the container's addresses
	To     []netip.Prefix // as in Ingress
	Stays  bool           // is the reference's from now on, and not remembered
}

func (i IngressIPTables) String() string {
	return resource.Line("ingress", resource.Opt("oifname", i.Link), resource.Opt("policy", i.Policy), "by iptables",
		resource.Flag("ip", i.V4), resource.Flag("ip6", i.V6))
}

// Traits implements resource.Describer.
func (i IngressIPTables) Traits() resource.Traits {
	return resource.Traits{Effect: resource.Closes, Network: networkOf(i.Policy)}
}

// The reference has the first, as it has ChainStage1. In the second a strict network meets all that are known; in the
// third new connections are asked in whose name they are; in the fourth stands what must not be in an open network's.
// The fifth decides about ICMP errors; in the sixth errors meet the strict networks.
const (
	chainStage2  = "CNI-ISOLATION-STAGE-2"
	chainStrict  = "CNI-ISOLATION-STRICT"
	chainSource  = "CNI-ISOLATION-SOURCE"
	chainPoliced = "CNI-ISOLATION-POLICED"
	chainErrors  = "CNI-ISOLATION-ERRORS"
	chainClosed  = "CNI-ISOLATION-CLOSED"

	commentStages = "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)"
)

func policyChains() []string {
	return []string{iptables.ChainStage1, chainStage2, chainStrict, chainSource, chainPoliced, chainErrors,
		chainClosed}
}

func commentPolicy(policy string) string {
	return "CNI firewall plugin rules (ingressPolicy: " + policy + ")"
}

// rules are those that a link needs, with what leads to them. Of a chain the first are inserted one after the other, so
// that the last of them comes first; ends are appended. Of a VLAN's gateway, the port is where frames for it leave the
// bridge, which br_netfilter has come here before the host routes them.
func (i locatedPolicy) rules(v6 bool, saved map[string][]xtables.Rule) (inserted, appended []xtables.Rule) {
	link, subnets := i.link, i.subnetsOf(v6, saved[chainSource])
	insert := func(chain, comment, format string, args ...any) {
		inserted = append(inserted, commented(chain, comment, format, args...))
	}
	end := func(chain, comment, format string, args ...any) {
		appended = append(appended, commented(chain, comment, format, args...))
	}
	policy := commentPolicy(i.Policy)
	forged := "DROP"
	if i.Policy == Open {
		forged = chainPoliced
	}

	insert(chainStrict, commentPolicy(Strict), "-o %s DROP", link)
	for _, s := range subnets {
		// As in filter.SubnetSets: what lets pass comes before all that drops, which is appended.
		insert(chainSource, policy, "-s %v -d %[1]v ! -o %s -m addrtype ! --dst-type LOCAL RETURN", s, link)
		insert(chainSource, policy, "-s %v -i %s RETURN", s, link)
		if i.port != "" {
			insert(chainSource, policy, "-s %v ! -i %s -m physdev --physdev-out %s --physdev-is-bridged RETURN", s,
				link, i.port)
		}
		end(chainSource, policy, "-s %v ! -i %s %s", s, link, forged)
	}
	pass, drop := i.errorRules(subnets)
	inserted, appended = append(inserted, pass...), append(appended, drop...)
	if i.Policy == Open {
		return inserted, appended
	}

	if len(subnets) > 0 {
		multicast := []string{"224.0.0.0/4", "255.255.255.255/32"}
		if subnets[0].Addr().Is6() {
			multicast = []string{"ff00::/8"}
		}
		for _, to := range multicast {
			insert(chainSource, commentStages, "-d %s RETURN", to)
		}
	}
	insert(chainPoliced, policy, "-i %s DROP", link)
	insert(chainStage2, commentStages, "-o %s DROP", link)
	insert(iptables.ChainStage1, policy, "-i %s ! -o %[1]s %s", link, chainStage2)
	switch i.Policy {
	case Isolated:
		insert(iptables.ChainStage1, policy, "-i %s -o %[1]s DROP", link)
	case Strict:
		insert(iptables.ChainStage1, policy, "-i %s ! -o %[1]s %s", link, chainStrict)
		insert(iptables.ChainStage1, policy, "! -i %s -o %[1]s DROP", link)
	}
	insert(iptables.ChainStage1, commentStages, "-m conntrack --ctstate RELATED,DNAT RETURN")
	insert(iptables.ChainStage1, commentStages, "-m conntrack --ctstate RELATED "+chainErrors)
	insert(iptables.ChainStage1, commentStages, "-m conntrack --ctstatus EXPECTED RETURN")
	insert(iptables.ChainStage1, commentStages, "-m conntrack --ctstate ESTABLISHED --ctdir REPLY RETURN")
	insert(iptables.ChainStage1, commentStages, "-m conntrack --ctstate NEW ! --ctstatus CONFIRMED "+chainSource)
	insert("INPUT", commentStages, "! -i lo -m conntrack --ctstate NEW "+chainSource)
	insert("FORWARD", commentStages, iptables.ChainStage1)
	end(iptables.ChainStage1, commentStages, "RETURN")
	end(chainStage2, commentStages, "RETURN")
	return inserted, appended
}

// errorRules are those about ICMP errors from a link, as the chain errors of our table has them: what lets pass, which
// is inserted, and what drops, which is appended.
func (i locatedPolicy) errorRules(subnets []netip.Prefix) (pass, drop []xtables.Rule) {
	link := i.link
	rule := func(format string, args ...any) xtables.Rule {
		return commented(chainErrors, commentPolicy(i.Policy), format, args...)
	}
	for _, s := range subnets {
		p := s.String()
		if s.IsSingleIP() { // as iptables-save prints it here
			p = s.Addr().String()
		}
		pass = append(pass,
			rule("-i %s ! -o %[1]s -m conntrack --ctorigsrc %s RETURN", link, p),
			rule("-i %s ! -o %[1]s -m conntrack --ctreplsrc %s RETURN", link, p))
		if i.Policy == Isolated {
			pass = append(pass,
				rule("-i %s -o %[1]s -m conntrack --ctorigsrc %s --ctreplsrc %[2]s RETURN", link, p))
		}
	}
	if i.Policy == Isolated {
		drop = append(drop, rule("-i %s -o %[1]s DROP", link))
	}
	if i.Policy != Open {
		drop = append(drop, rule("-i %s ! -o %[1]s %s", link, chainStage2))
	}
	if i.Policy == Strict {
		pass = append(pass, commented(chainClosed, commentPolicy(Strict), "-o %s DROP", link))
		drop = append(drop, rule("-i %s ! -o %[1]s %s", link, chainStrict))
	}
	return pass, append(drop, rule("-i %s ! -o %[1]s %s", link, chainClosed))
}

// commented is a rule that ends with a comment and the jump. Format ends with the jump's target.
func commented(chain, comment, format string, args ...any) xtables.Rule {
	words := strings.Fields(fmt.Sprintf(format, args...))
	match, target := words[:len(words)-1], words[len(words)-1]
	words = slices.Concat(match, []string{"-m", "comment", "--comment", comment, "-j", target})
	return xtables.NewRule(chain, words...)
}

// odd are rules about the link that another policy wanted.
func (i locatedPolicy) odd(have map[string][]xtables.Rule, want []xtables.Rule) (odd []xtables.Rule) {
	for _, chain := range policyChains() {
		for _, r := range have[chain] {
			if slices.Contains(linksOf(r), i.link) && !slices.ContainsFunc(want, r.Same) {
				odd = append(odd, r)
			}
		}
	}
	return odd
}

// linksOf are the links that a rule of a policy is about.
func linksOf(r xtables.Rule) (links []string) {
	if !strings.HasPrefix(r.Comment, "CNI firewall plugin rules (ingressPolicy: ") {
		return nil
	}
	for n := 0; n+1 < len(r.Words); n++ {
		if r.Words[n] == "-i" || r.Words[n] == "-o" {
			links = append(links, r.Words[n+1])
		}
	}
	return links
}

// A locatedPolicy is a policy with what it is about on this host.
type locatedPolicy struct {
	IngressIPTables
	link    string           // empty: there is nothing to do
	port    string           // of the bridge, where the link is the gateway of a VLAN
	subnets []netip.Prefix   // behind the link
	tables  []*xtables.Table // of the families of the container's addresses
}

func (i IngressIPTables) locate(w *kernel.World) (l locatedPolicy, err error) {
	in := Ingress{i.Owner, i.Link, i.Policy, i.To}
	on, err := in.on(w)
	if err != nil || on.link == "" {
		return l, err
	}
	l = locatedPolicy{IngressIPTables: i, link: on.link}
	if l.subnets, err = in.subnetsBehind(w, on, nil); err != nil {
		return l, err
	}
	if l.port, err = portOf(w, l.link); err != nil {
		return l, err
	}
	for _, v6 := range []bool{false, true} {
		if v6 && !i.V6 || !v6 && !i.V4 {
			continue
		}
		t, err := xtables.TableOf(w.Host, v6, "filter")
		if err != nil {
			return l, err
		}
		l.tables = append(l.tables, t)
	}
	return l, nil
}

// portOf is the port of a bridge that is the other end of a link. It is nothing where there is none, or no
// br_netfilter: a rule that asks for ports loads it, and then it is on.
func portOf(w *kernel.World, link string) (string, error) {
	if _, err := procsys.Get(w.Host, "net/bridge/bridge-nf-call-iptables"); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	} else if err != nil {
		return "", err
	}
	l, err := rtnl.LinkByName(w.Host, link)
	if err != nil || l.Kind != "veth" {
		return "", resource.ExceptNoLink(err)
	}
	br, err := filter.LeadsTo(w, l)
	if err != nil || br == nil {
		return "", err
	}
	port, err := rtnl.LinkByIndex(w.Host, l.Peer)
	if err != nil {
		return "", err
	}
	return port.Name, nil
}

// subnetsOf are the subnets of a family, and those that a table has rules for from other attachments.
func (i locatedPolicy) subnetsOf(v6 bool, have []xtables.Rule) []netip.Prefix {
	subnets := slices.Clone(i.subnets)
	for _, r := range have {
		letsPass := r.Src.IsValid() && !r.Dst.IsValid() && r.Jump == "RETURN"
		if letsPass && slices.Contains(linksOf(r), i.link) {
			subnets = append(subnets, r.Src)
		}
	}
	return filter.Masked(filter.OfFamily(subnets, v6))
}

// Ensure implements plan.Resource.
func (i IngressIPTables) Ensure(ctx context.Context, w *kernel.World) (changed bool, err error) {
	l, err := i.locate(w)
	if err != nil || l.link == "" {
		return false, err
	}
	if !i.Stays {
		if changed, err = remember(w, iptPolicyRecord, i.Owner, l.link); err != nil {
			return false, err
		}
	}
	made := false
	for _, t := range l.tables {
		err := iptables.WithLock(ctx, func(ctx context.Context) error {
			did, err := iptables.Edit(ctx, t, l.draft)
			made = made || did
			return err
		})
		if err != nil {
			return false, err
		}
	}
	if made && i.Policy != Open {
		forgetForged(w, l.subnets)
	}
	return changed || made, nil
}

// draft makes the rules of a link those that its policy needs.
func (i locatedPolicy) draft(d *iptables.Draft) error {
	insert, ends := i.rules(d.Table.V6, d.Saved)
	for _, chain := range policyChains() {
		if i.Policy != Open || chain != iptables.ChainStage1 && chain != chainStage2 {
			d.Chain(chain)
		}
	}
	d.Delete(i.odd(d.Saved, slices.Concat(insert, ends))...)
	for _, r := range insert {
		at := slices.IndexFunc(d.Saved[r.Chain], r.Same)
		replies := r.Chain == iptables.ChainStage1 && len(linksOf(r)) == 0
		switch {
		case at < 0:
			d.Insert(r)
		case late(r, at, d.Saved[r.Chain]), replies && len(d.Lines) > 0: // replies stay first
			d.Lines = append(d.Lines, r.Delete(), r.Insert())
		}
	}
	d.Append(ends...)
	return nil
}

// late reports whether the jump to the policies stands behind the one that lets addresses through.
func late(r xtables.Rule, at int, chain []xtables.Rule) bool {
	return r.Jump == iptables.ChainStage1 && slices.ContainsFunc(chain[:at],
		func(r xtables.Rule) bool { return r.Jump == iptables.ChainForward })
}

// Verify implements plan.Resource.
func (i IngressIPTables) Verify(ctx context.Context, w *kernel.World) error {
	l, err := i.locate(w)
	if err != nil {
		return err
	}
	var d resource.Drift
	for _, t := range l.tables {
		have, err := t.Save(ctx)
		if err != nil {
			return err
		}
		insert, ends := l.rules(t.V6, have)
		want := slices.Concat(insert, ends)
		for _, r := range iptables.Lacking(have, want) {
			d.Add(spec.Missing(fmt.Sprintf("%v: rule %q", t, r)))
		}
		for at, r := range have["FORWARD"] {
			if late(r, at, have["FORWARD"]) {
				d.Add(spec.DiffersBy("position", "%v: rule %q comes too late", t, r))
			}
		}
		for _, r := range l.odd(have, want) {
			d.Add(spec.TooMuch(fmt.Sprintf("%v: rule %q", t, r)))
		}
	}
	return d.Err()
}
