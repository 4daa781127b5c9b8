package resource

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
)

// newHost is a host alone; its world has no container, so nothing tells that an owner is dead.
func newHost(t testing.TB) *kernel.World {
	t.Helper()
	return &kernel.World{Host: openNS(t), Memory: kernel.Memory{Dir: t.TempDir()}}
}

func tcp(host string, port uint16) PortMapping {
	m := PortMapping{Protocol: "tcp", HostPort: port, ContainerPort: 80}
	if host != "" {
		m.HostIP = addr(host)
	}
	return m
}

func publishOf(container, network, to string, ports ...PortMapping) Publish {
	to6 := "fd00::" + strings.NewReplacer(".", ":", "/24", "/64").Replace(to)
	return Publish{Owner: spec.Owner{Network: network, ContainerID: container, IfName: "eth0"}, To4: pfx(to), To6: pfx(to6), SNAT: true, Ports: ports}
}

func ensure(t testing.TB, w *kernel.World, r plan.Resource) {
	t.Helper()
	if _, err := r.Ensure(t.Context(), w); err != nil {
		t.Fatal(err)
	}
}

func removeIt(t testing.TB, w *kernel.World, r plan.Remover) {
	t.Helper()
	if err := r.Remove(t.Context(), w); err != nil {
		t.Fatal(err)
	}
}

func verify(t testing.TB, w *kernel.World, r plan.Resource) {
	t.Helper()
	if err := r.Verify(t.Context(), w); err != nil {
		t.Error(err)
	}
}

// Two containers cannot have one port at overlapping addresses. The error says who has it and changes
// nothing.
func TestPublishConflicts(t *testing.T) {
	udp := tcp("", 8080)
	udp.Protocol = "udp"
	for _, c := range []struct {
		name     string
		a, b     PortMapping
		conflict bool
	}{
		{"any, any", tcp("", 8080), tcp("", 8080), true},
		{"any, one", tcp("", 8080), tcp("192.0.2.1", 8080), true},
		{"one, any", tcp("192.0.2.1", 8080), tcp("", 8080), true},
		{"one, any as zero", tcp("192.0.2.1", 8080), tcp("0.0.0.0", 8080), true},
		{"one, same", tcp("192.0.2.1", 8080), tcp("192.0.2.1", 8080), true},
		{"any, one of IPv6", tcp("", 8080), tcp("2001:db8::1", 8080), true},
		{"one, other", tcp("192.0.2.1", 8080), tcp("192.0.2.2", 8080), false},
		{"IPv4, IPv6", tcp("192.0.2.1", 8080), tcp("2001:db8::1", 8080), false},
		{"other port", tcp("", 8080), tcp("", 8081), false},
		{"other protocol", tcp("", 8080), udp, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newHost(t)
			a := publishOf("c1", "net", "10.1.2.5/24", c.a)
			b := publishOf("c2", "net", "10.1.2.6/24", tcp("", 1), c.b)
			ensure(t, w, a)
			before := nftState(t, w)
			changed, err := b.Ensure(t.Context(), w)
			if !c.conflict {
				if err != nil {
					t.Fatal(err)
				}
				verify(t, w, a)
				verify(t, w, b)
				removeIt(t, w, a)
				verify(t, w, b)
				return
			}
			if err == nil || changed {
				t.Fatalf("changed %v, error %v", changed, err)
			}
			for _, word := range []string{"tcp port 8080", "net/c1/eth0", ":80", "another port"} {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("the error does not say %q: %v", word, err)
				}
			}
			if after := nftState(t, w); after != before {
				t.Errorf("the failed one left:\n%s", after)
			}
			removeIt(t, w, a)
			ensure(t, w, b)
			verify(t, w, b)
		})
	}
}

// A container's second attachment stands by with the same mapping, and takes over with its own address when
// the first goes. podman sends one mapping to each network.
func TestPublishStandsBy(t *testing.T) {
	w := newHost(t)
	var all []Publish
	for i, network := range []string{"one", "two", "three"} {
		all = append(all, publishOf("c1", network, fmt.Sprintf("10.%d.0.5/24", i+1), tcp("", 8080), tcp("192.0.2.1", 443)))
	}
	skeleton(t, w)
	for _, p := range all {
		ensure(t, w, p)
		if changed, err := p.Ensure(t.Context(), w); changed || err != nil {
			t.Errorf("again: changed %v, error %v", changed, err)
		}
	}
	leads := func(want string) {
		t.Helper()
		s := nftState(t, w)
		for _, e := range []string{"tcp . 8080 comment \"%s\" : %s . 80", "192.0.2.1 . tcp . 443 comment \"%s\" : %s . 80"} {
			n := 0
			for _, p := range all {
				if p.To4.Addr().String() == want {
					n += strings.Count(s, fmt.Sprintf(e, kernel.Tag(p.Owner), want))
				}
			}
			if n != 1 {
				t.Errorf("does not lead to %s:\n%s", want, s)
			}
		}
	}
	leads("10.1.0.5")
	if _, err := publishOf("c2", "one", "10.1.0.6/24", tcp("", 8080)).Ensure(t.Context(), w); err == nil {
		t.Error("another container got the port")
	}
	removeIt(t, w, all[1]) // who stands by leaves nothing, and takes nothing
	leads("10.1.0.5")
	verify(t, w, all[0])
	verify(t, w, all[2])
	removeIt(t, w, all[0])
	leads("10.3.0.5")
	verify(t, w, all[2])
	if _, err := publishOf("c2", "one", "10.1.0.6/24", tcp("", 8080)).Ensure(t.Context(), w); err == nil {
		t.Error("another container got the port")
	}
	removeIt(t, w, all[2])
	if s := nftState(t, w); strings.Contains(s, "elements") {
		t.Errorf("left:\n%s", s)
	}
	ensure(t, w, publishOf("c2", "one", "10.1.0.6/24", tcp("", 8080)))
}

// A port whose owner is gone without a DEL is taken over with all that the owner had, and the late DEL of
// the former owner takes nothing away.
//
// clause: P12
func TestPublishOfTheDead(t *testing.T) {
	w := newWorld(t)
	wire(t, w)
	a := publishOf("c1", "net", "10.1.2.5/24", tcp("", 8080), tcp("192.0.2.1", 8081))
	ensure(t, w, a)
	b := publishOf("c2", "net", "10.1.2.6/24", tcp("", 8080))
	other := &kernel.World{Host: w.Host, Memory: w.Memory}
	if _, err := b.Ensure(t.Context(), other); err == nil {
		t.Fatal("the port of a living container was taken")
	}
	host(t, w, "ip link del veth1") // as it goes when the namespace does
	ensure(t, other, b)
	verify(t, other, b)
	if s := nftState(t, w); strings.Contains(s, "10.1.2.5") || strings.Contains(s, "8081") {
		t.Errorf("the dead still has:\n%s", s)
	}
	before := nftState(t, w)
	removeIt(t, other, a)
	if after := nftState(t, w); after != before {
		t.Errorf("the late DEL changed\n%s\nto\n%s", before, after)
	}
	verify(t, other, b)

	// IPAM gave its address to another container: then it is nobody's, too.
	c := publishOf("c3", "net", "10.1.2.6/24", tcp("192.0.2.1", 8080))
	c.To6 = netip.Prefix{}
	ensure(t, other, c)
	removeIt(t, other, b)
	verify(t, other, c)
}

// The same late DEL where elements of A were replaced by hand: what does not carry A's tag stays.
func TestRemoveLooksAtTags(t *testing.T) {
	w := newHost(t)
	m := Masquerade{Owner: owner, From: []netip.Prefix{pfx("10.1.2.5/24")}}
	ensure(t, w, m)
	late := Masquerade{Owner: spec.Owner{Network: "net", ContainerID: "c2", IfName: "eth0"}, From: m.From}
	ensure(t, w, late) // the address was given away again
	verify(t, w, late)
	if err := m.Verify(t.Context(), w); err == nil || !strings.Contains(err.Error(), "net/c2/eth0") {
		t.Errorf("the former owner is told %v", err)
	}
	removeIt(t, w, m)
	verify(t, w, late)
}

// Removing where nothing was ever made makes nothing: no table, no transaction.
//
// clause: P12
func TestRemoveNothing(t *testing.T) {
	w := newHost(t)
	for _, r := range []plan.Remover{Masquerade{Owner: owner}, Publish{Owner: owner}, SpoofCheck{Owner: owner}} {
		removeIt(t, w, r)
	}
	if err := SweepNFT(t.Context(), w, "net", func([8]byte) bool { return false }); err != nil {
		t.Error(err)
	}
	if s := nftState(t, w); s != "" {
		t.Errorf("made:\n%s", s)
	}
}

// clause: P22
func TestSweepNFT(t *testing.T) {
	w := newHost(t)
	skeleton(t, w)
	all := func(container, network, to string, port uint16) []plan.Remover {
		p := publishOf(container, network, to, tcp("", port), tcp("192.0.2.1", port+1))
		return []plan.Remover{p, Masquerade{Owner: p.Owner, From: []netip.Prefix{p.To4}}, SpoofCheck{Owner: p.Owner, Link: "v" + container + network, MAC: "02:00:00:00:00:01"}}
	}
	keep := append(all("c1", "net", "10.1.2.5/24", 80), all("c1", "other", "10.2.2.5/24", 90)...)
	for _, r := range keep {
		ensure(t, w, r)
	}
	want := elements(t, w)
	// One that stands by behind c1's mapping on another network, and two that are whole.
	stale := append(all("c2", "net", "10.1.2.6/24", 100), all("c3", "net", "10.1.2.7/24", 200)...)
	stale = append(stale, publishOf("c1", "net2", "10.3.2.5/24", tcp("", 80)))
	for _, r := range stale {
		ensure(t, w, r)
	}
	valid := map[[8]byte]bool{kernel.OwnerHash(spec.Owner{Network: "net", ContainerID: "c1", IfName: "eth0"}): true}
	for _, network := range []string{"net", "net2"} {
		if err := SweepNFT(t.Context(), w, network, func(h [8]byte) bool { return valid[h] }); err != nil {
			t.Fatal(err)
		}
	}
	if got := elements(t, w); got != want {
		t.Errorf("left:\n%s\nwant\n%s", got, want)
	}
	for _, r := range keep {
		verify(t, w, r)
	}

	// Who stood by takes over from whom the sweep removed.
	next := publishOf("c1", "third", "10.4.2.5/24", tcp("", 80))
	ensure(t, w, next)
	if err := SweepNFT(t.Context(), w, "net", func([8]byte) bool { return false }); err != nil {
		t.Fatal(err)
	}
	if s := nftState(t, w); !strings.Contains(s, kernel.Tag(next.Owner)+"\" : 10.4.2.5 . 80") {
		t.Errorf("nobody took over:\n%s", s)
	}
	verify(t, w, next)
}

// A container may have hundreds of ports, in one transaction.
func TestPublishManyPorts(t *testing.T) {
	w := newHost(t)
	var ports []PortMapping
	for i := range 250 {
		ports = append(ports, tcp("", uint16(20000+i)))
	}
	p := publishOf("c1", "net", "10.1.2.5/24", ports...)
	ensure(t, w, p)
	verify(t, w, p)
	removeIt(t, w, p)
	if s := nftState(t, w); strings.Contains(s, "elements") {
		t.Errorf("left:\n%s", s)
	}
}

func TestPacketFilter(t *testing.T) {
	w := newHost(t)
	verify(t, w, PacketFilter{})
	if s := nftState(t, w); s != "" {
		t.Errorf("made:\n%s", s)
	}
}

// Everything that is in our tables can be printed by nft(8) and loaded again, whatever people call things.
func TestNFTReload(t *testing.T) {
	w := newHost(t)
	long := strings.Repeat("x", 200)
	for i, o := range []spec.Owner{owner, {Network: long, ContainerID: long, IfName: `a"b\c`}, {Network: "netö", ContainerID: "c$(reboot)", IfName: "é;"}} {
		p := Publish{Owner: o, To4: pfx(fmt.Sprintf("10.1.2.%d/24", i+1)), To6: pfx(fmt.Sprintf("2001:db8:1111:2222:3333:4444:5555:%d/64", i+6666)), SNAT: true,
			Ports: []PortMapping{tcp("", uint16(i+1)), tcp("2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff", uint16(65535-i))}, MasqAll: i == 2,
			Conditions6: []string{"ip6 saddr { fd00::/7, ::1 } iifname eth* meta mark & 0xff 0x1 th sport != 1-1023"}}
		ensure(t, w, p)
		verify(t, w, p)
		m := Masquerade{Owner: o, From: []netip.Prefix{p.To4, p.To6}, Except: []netip.Prefix{pfx("10.0.0.0/9"), pfx("192.0.2.1/32"), pfx("fc00::/7")}}
		ensure(t, w, m)
		verify(t, w, m)
		ensure(t, w, SpoofCheck{Owner: o, Link: fmt.Sprintf("veth%d", i), MAC: "02:00:00:00:00:01"})
		defer func() { removeIt(t, w, p) }()
	}
	before := nftState(t, w)
	file := t.TempDir() + "/rules"
	if err := os.WriteFile(file, []byte(before), 0o600); err != nil {
		t.Fatal(err)
	}
	again := newHost(t)
	nstest.RunIn(t, again.Host.Path, "nft", "-f", file)
	if after := nftState(t, again); after != before {
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
	w := newHost(t)
	var wg sync.WaitGroup
	errs := make([]error, 64)
	rs := make([][]plan.Remover, 64)
	for i := range rs {
		p := publishOf(fmt.Sprintf("c%d", i+100), "net", fmt.Sprintf("10.1.2.%d/24", i+2), tcp("", uint16(8000+i)), tcp(fmt.Sprintf("192.0.2.%d", i+1), 443))
		rs[i] = []plan.Remover{p, Masquerade{Owner: p.Owner, From: []netip.Prefix{p.To4}}, SpoofCheck{Owner: p.Owner, Link: fmt.Sprintf("veth%d", i), MAC: "02:00:00:00:00:01"}}
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
				for _, r := range rs[i] {
					errs[i] = errors.Join(errs[i], do(r, &kernel.World{Host: ns}))
				}
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
	if s := nftState(t, w); strings.Contains(s, "elements") {
		t.Errorf("left:\n%s", s)
	}
}

func killFilterPlan() plan.Plan {
	return plan.Plan{
		publishOf("c1", "net", "10.1.2.5/24", tcp("", 8080), tcp("192.0.2.1", 443)),
		Masquerade{Owner: owner, From: []netip.Prefix{pfx("10.1.2.5/24")}},
		SpoofCheck{Owner: owner, Link: "veth1", MAC: "02:00:00:00:00:01"},
	}
}

// A process that is killed at any point leaves nothing that Remove, or a sweep, does not find.
//
// clause: P11
func TestKilledFilter(t *testing.T) {
	w := newWorld(t)
	p := killFilterPlan()
	all := func() string { return elements(t, w) }
	skeleton(t, w)
	before := all()
	runKilled(t, w, "filter", -1)
	made := all()
	if err := p.Remove(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	whole := runKilled(t, w, "filter", -1)
	const n = 60
	halfway := 0
	for i := range n {
		if err := p.Remove(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		if i%4 == 0 { // the skeleton is made in between, too
			nft(t, w, "flush ruleset")
		}
		runKilled(t, w, "filter", whole*time.Duration(i)/n)
		if s := all(); s != before && s != made {
			halfway++
		}
		if i%2 == 0 {
			if err := SweepNFT(t.Context(), w, "net", func([8]byte) bool { return false }); err != nil {
				t.Fatal(err)
			}
		} else if err := p.Remove(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		if s := nftState(t, w); strings.Contains(s, "elements") {
			t.Fatalf("killed after %d/%d, and removed:\n%s", i, n, s)
		}
	}
	if halfway == 0 {
		t.Error("none was killed halfway: the test shows nothing")
	}
	t.Logf("%d of %d had made something and not all; one takes %v", halfway, n, whole)
	runKilled(t, w, "filter", -1)
	if err := p.Verify(t.Context(), w); err != nil {
		t.Error(err)
	}
}

// A process that listens on a port that is published is not an error, for podman itself does.
func TestPublishWarnsOfListeners(t *testing.T) {
	l := newLab(t)
	l.serve(l.w.Host, "host", "tcp", ":8080")
	var log bytes.Buffer
	defer slog.SetDefault(slog.Default())
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	l.ensure(l.publishA(tcp("", 8081)), l.w)
	if log.Len() > 0 {
		t.Errorf("warned for nothing: %s", &log)
	}
	l.ensure(l.publishA(tcp("", 8080)), l.w)
	if !strings.Contains(log.String(), "port=8080") {
		t.Errorf("not warned: %s", &log)
	}
}
