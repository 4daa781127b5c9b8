package filter_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/engine"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/resource/filter/filtertest"
	"github.com/fairlead-cni/fairlead/resource/filter/masquerade"
	"github.com/fairlead-cni/fairlead/resource/filter/policy"
	"github.com/fairlead-cni/fairlead/resource/filter/publish"
	"github.com/fairlead-cni/fairlead/resource/filter/spoof"
	"github.com/fairlead-cni/fairlead/spec"
)

// A late DEL where an element was replaced by hand: what does not carry the owner's tag stays.
func TestRemoveLooksAtTags(t *testing.T) {
	w := contract.NewHost(t)
	s := spoof.Check{Owner: contract.Owner, Link: "veth1", MAC: "02:00:00:00:00:01"}
	contract.Ensure(t, w, s)
	late := s
	late.Owner.ContainerID = "c2" // the link's name was given away again
	contract.Ensure(t, w, late)
	contract.Verify(t, w, late)
	if err := s.Verify(t.Context(), w); err == nil || !strings.Contains(err.Error(), "net/c2/eth0") {
		t.Errorf("the former owner is told %v", err)
	}
	contract.Remove(t, w, s)
	contract.Verify(t, w, late)
}

// Removing where nothing was ever made makes nothing: no table, no transaction.
//
// clause: P12
func TestRemoveNothing(t *testing.T) {
	w := contract.NewHost(t)
	for _, r := range []plan.Remover{masquerade.Sources{Owner: contract.Owner}, publish.Ports{Owner: contract.Owner},
		spoof.Check{Owner: contract.Owner}} {
		contract.Remove(t, w, r)
	}
	if err := filtertest.SweepNFT(t.Context(), w, "net", func([8]byte) bool { return false }); err != nil {
		t.Error(err)
	}
	if s := filtertest.State(t, w); s != "" {
		t.Errorf("made:\n%s", s)
	}
}

// clause: P22
func TestSweepNFT(t *testing.T) {
	w := contract.NewHost(t)
	filtertest.MakeTables(t, w)
	all := func(container, network, to string, port uint16) []plan.Remover {
		p := filtertest.PortsOf(container, network, to, filtertest.TCP("", port), filtertest.TCP("192.0.2.1", port+1))
		return []plan.Remover{p, masquerade.Sources{Owner: p.Owner, From: []netip.Prefix{p.To4}},
			spoof.Check{Owner: p.Owner, Link: "v" + container + network, MAC: "02:00:00:00:00:01"}}
	}
	keep := append(all("c1", "net", "10.1.2.5/24", 80), all("c1", "other", "10.2.2.5/24", 90)...)
	for _, r := range keep {
		contract.Ensure(t, w, r)
	}
	want := filtertest.Elements(t, w)
	// One that stands by behind c1's mapping on another network, and two that are whole.
	stale := append(all("c2", "net", "10.1.2.6/24", 100), all("c3", "net", "10.1.2.7/24", 200)...)
	stale = append(stale, filtertest.PortsOf("c1", "net2", "10.3.2.5/24", filtertest.TCP("", 80)))
	for _, r := range stale {
		contract.Ensure(t, w, r)
	}
	valid := map[[8]byte]bool{identity.OwnerHash(spec.Owner{Network: "net", ContainerID: "c1", IfName: "eth0"}): true}
	for _, network := range []string{"net", "net2"} {
		if err := filtertest.SweepNFT(t.Context(), w, network, func(h [8]byte) bool { return valid[h] }); err != nil {
			t.Fatal(err)
		}
	}
	if got := filtertest.Elements(t, w); got != want {
		t.Errorf("left:\n%s\nwant\n%s", got, want)
	}
	for _, r := range keep {
		contract.Verify(t, w, r)
	}

	// Who stood by takes over from whom the sweep removed.
	next := filtertest.PortsOf("c1", "third", "10.4.2.5/24", filtertest.TCP("", 80))
	contract.Ensure(t, w, next)
	if err := filtertest.SweepNFT(t.Context(), w, "net", func([8]byte) bool { return false }); err != nil {
		t.Fatal(err)
	}
	if s := filtertest.State(t, w); !strings.Contains(s, identity.Tag(next.Owner)+"\" : 10.4.2.5 . 80") {
		t.Errorf("nobody took over:\n%s", s)
	}
	contract.Verify(t, w, next)
}

func TestPacketFilter(t *testing.T) {
	w := contract.NewHost(t)
	contract.Verify(t, w, filter.PacketFilter{})
	if s := filtertest.State(t, w); s != "" {
		t.Errorf("made:\n%s", s)
	}
}

// Everything that is in our tables can be printed by nft(8) and loaded again, whatever people call things.
func TestNFTReload(t *testing.T) {
	w := contract.NewHost(t)
	long := strings.Repeat("x", 200)
	for n, line := range []string{"ip addr add 10.1.2.254/24 dev br%d",
		"ip addr add 2001:db8:1111:2222::fe/63 dev br%d nodad"} {
		contract.Host(t, w, "ip link add br%d up type bridge", n)
		contract.Host(t, w, line, n)
		contract.Ensure(t, w, policy.Ingress{Owner: contract.Owner, Link: fmt.Sprintf("br%d", n), Policy: policy.Strict,
			To: []netip.Prefix{contract.Prefix("10.1.2.5/24"), contract.Prefix("2001:db8:1111:2222::5/63")}})
	}
	for i, o := range []spec.Owner{contract.Owner, {Network: long, ContainerID: long, IfName: `a"b\c`}, {Network: "netö", ContainerID: "c$(reboot)", IfName: "é;"}} {
		p := publish.Ports{Owner: o, To4: contract.Prefix(fmt.Sprintf("10.1.2.%d/24", i+1)),
			To6: contract.Prefix(fmt.Sprintf("2001:db8:1111:2222:3333:4444:5555:%d/64", i+6666)), SNAT: true,
			Mappings: []publish.Mapping{filtertest.TCP("", uint16(i+1)),
				filtertest.TCP("2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff", uint16(65535-i))}, MasqAll: i == 2,
			Conditions6: []string{"ip6 saddr { fd00::/7, ::1 } iifname eth* meta mark & 0xff 0x1 th sport != 1-1023"}}
		contract.Ensure(t, w, p)
		contract.Verify(t, w, p)
		m := masquerade.Sources{Owner: o, From: []netip.Prefix{p.To4, p.To6},
			Except: []netip.Prefix{contract.Prefix("10.0.0.0/9"), contract.Prefix("192.0.2.1/32"),
				contract.Prefix("fc00::/7")}}
		contract.Ensure(t, w, m)
		contract.Verify(t, w, m)
		contract.Ensure(t, w, spoof.Check{Owner: o, Link: fmt.Sprintf("veth%d", i), MAC: "02:00:00:00:00:01"})
		defer func() { contract.Remove(t, w, p) }()
	}
	before := filtertest.State(t, w)
	file := t.TempDir() + "/rules"
	if err := os.WriteFile(file, []byte(before), 0o600); err != nil {
		t.Fatal(err)
	}
	again := contract.NewHost(t)
	nstest.RunIn(t, again.Host.Path, "nft", "-f", file)
	if after := filtertest.State(t, again); after != before {
		t.Errorf("loaded again it is\n%s\nand was\n%s", after, before)
	}
	if j := nstest.RunIn(t, w.Host.Path, "nft", "-j", "list", "ruleset"); !json.Valid([]byte(j)) {
		t.Errorf("nft -j prints %s", j)
	}
}

// 64 attachments at once: nobody fails and nobody is lost.
//
// clause: P20
func TestNFTParallel(t *testing.T) {
	w := contract.NewHost(t)
	var wg sync.WaitGroup
	errs := make([]error, 64)
	rs := make([][]plan.Remover, 64)
	for i := range rs {
		p := filtertest.PortsOf(fmt.Sprintf("c%d", i+100), "net", fmt.Sprintf("10.1.2.%d/24", i+2),
			filtertest.TCP("", uint16(8000+i)),
			filtertest.TCP(fmt.Sprintf("192.0.2.%d", i+1), 443))
		rs[i] = []plan.Remover{p, masquerade.Sources{Owner: p.Owner, From: []netip.Prefix{p.To4}},
			spoof.Check{Owner: p.Owner, Link: fmt.Sprintf("veth%d", i), MAC: "02:00:00:00:00:01"}}
	}
	run := func(do func(plan.Remover, *kernel.World) error) {
		t.Helper()
		for i := range rs {
			wg.Go(func() {
				ns, err := kernel.Open(w.Host.Path)
				if err != nil {
					errs[i] = err
					return
				}
				defer ns.Close()
				own := &kernel.World{Host: ns}
				for _, r := range rs[i] {
					errs[i] = errors.Join(errs[i], do(r, own))
				}
				errs[i] = errors.Join(errs[i], own.Finish())
			})
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	run(func(r plan.Remover, w *kernel.World) error { _, err := r.Ensure(t.Context(), w); return err })
	run(func(r plan.Remover, w *kernel.World) error { return r.Verify(t.Context(), w) })
	run(func(r plan.Remover, w *kernel.World) error { return r.Remove(t.Context(), w) })
	if s := filtertest.State(t, w); strings.Contains(s, "elements") {
		t.Errorf("left:\n%s", s)
	}
}

// A process that is killed at any point leaves nothing that Remove, or a sweep, does not find.
//
// clause: P11
func TestKilledFilter(t *testing.T) {
	w := contract.NewWorld(t)
	p := filtertest.KillFilterPlan()
	all := func() string { return filtertest.Elements(t, w) }
	filtertest.MakeTables(t, w)
	before := all()
	contract.RunKilled(t, w, "filter", -1)
	made := all()
	if err := engine.Undo(t.Context(), w, p); err != nil {
		t.Fatal(err)
	}
	whole := contract.RunKilled(t, w, "filter", -1)
	const n = 60
	halfway := 0
	for i := range n {
		if err := engine.Undo(t.Context(), w, p); err != nil {
			t.Fatal(err)
		}
		if i%4 == 0 { // the skeleton is made in between, too
			filtertest.NFT(t, w, "flush ruleset")
		}
		contract.RunKilled(t, w, "filter", whole*time.Duration(i)/n)
		if s := all(); s != before && s != made {
			halfway++
		}
		if i%2 == 0 {
			if err := filtertest.SweepNFT(t.Context(), w, "net", func([8]byte) bool { return false }); err != nil {
				t.Fatal(err)
			}
		} else if err := engine.Undo(t.Context(), w, p); err != nil {
			t.Fatal(err)
		}
		if s := filtertest.State(t, w); strings.Contains(s, "elements") {
			t.Fatalf("killed after %d/%d, and removed:\n%s", i, n, s)
		}
	}
	if halfway == 0 {
		t.Error("none was killed halfway: the test shows nothing")
	}
	t.Logf("%d of %d had made something and not all; one takes %v", halfway, n, whole)
	contract.RunKilled(t, w, "filter", -1)
	if err := engine.Verify(t.Context(), w, p); err != nil {
		t.Error(err)
	}
}
