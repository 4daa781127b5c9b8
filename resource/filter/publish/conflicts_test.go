package publish_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/filter/filtertest"
	"github.com/fairlead-cni/fairlead/resource/filter/publish"
)

// Two containers cannot have one port at overlapping addresses. The error says who has it and changes
// nothing.
func TestPublishConflicts(t *testing.T) {
	udp := filtertest.TCP("", 8080)
	udp.Protocol = "udp"
	for _, c := range []struct {
		name     string
		a, b     publish.Mapping
		conflict bool
	}{
		{"any, any", filtertest.TCP("", 8080), filtertest.TCP("", 8080), true},
		{"any, one", filtertest.TCP("", 8080), filtertest.TCP("192.0.2.1", 8080), true},
		{"one, any", filtertest.TCP("192.0.2.1", 8080), filtertest.TCP("", 8080), true},
		{"one, any as zero", filtertest.TCP("192.0.2.1", 8080), filtertest.TCP("0.0.0.0", 8080), true},
		{"one, same", filtertest.TCP("192.0.2.1", 8080), filtertest.TCP("192.0.2.1", 8080), true},
		{"any, one of IPv6", filtertest.TCP("", 8080), filtertest.TCP("2001:db8::1", 8080), true},
		{"one, other", filtertest.TCP("192.0.2.1", 8080), filtertest.TCP("192.0.2.2", 8080), false},
		{"IPv4, IPv6", filtertest.TCP("192.0.2.1", 8080), filtertest.TCP("2001:db8::1", 8080), false},
		{"other port", filtertest.TCP("", 8080), filtertest.TCP("", 8081), false},
		{"other protocol", filtertest.TCP("", 8080), udp, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := contract.NewHost(t)
			a := filtertest.PortsOf("c1", "net", "10.1.2.5/24", c.a)
			b := filtertest.PortsOf("c2", "net", "10.1.2.6/24", filtertest.TCP("", 1), c.b)
			contract.Ensure(t, w, a)
			before := filtertest.State(t, w)
			changed, err := b.Ensure(t.Context(), w)
			if !c.conflict {
				if err != nil {
					t.Fatal(err)
				}
				contract.Verify(t, w, a)
				contract.Verify(t, w, b)
				contract.Remove(t, w, a)
				contract.Verify(t, w, b)
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
			if after := filtertest.State(t, w); after != before {
				t.Errorf("the failed one left:\n%s", after)
			}
			contract.Remove(t, w, a)
			contract.Ensure(t, w, b)
			contract.Verify(t, w, b)
		})
	}
}

// A container's second attachment stands by with the same mapping, and takes over with its own address when
// the first goes. podman sends one mapping to each network.
func TestPublishStandsBy(t *testing.T) {
	w := contract.NewHost(t)
	var all []publish.Ports
	for i, network := range []string{"one", "two", "three"} {
		all = append(all, filtertest.PortsOf("c1", network, fmt.Sprintf("10.%d.0.5/24", i+1), filtertest.TCP("", 8080),
			filtertest.TCP("192.0.2.1", 443)))
	}
	filtertest.MakeTables(t, w)
	for _, p := range all {
		contract.Ensure(t, w, p)
		if changed, err := p.Ensure(t.Context(), w); changed || err != nil {
			t.Errorf("again: changed %v, error %v", changed, err)
		}
	}
	leads := func(want string) {
		t.Helper()
		s := filtertest.State(t, w)
		for _, e := range []string{"tcp . 8080 comment \"%s\" : %s . 80",
			"192.0.2.1 . tcp . 443 comment \"%s\" : %s . 80"} {
			n := 0
			for _, p := range all {
				if p.To4.Addr().String() == want {
					n += strings.Count(s, fmt.Sprintf(e, identity.Tag(p.Owner), want))
				}
			}
			if n != 1 {
				t.Errorf("does not lead to %s:\n%s", want, s)
			}
		}
	}
	leads("10.1.0.5")
	if _, err := filtertest.PortsOf("c2", "one", "10.1.0.6/24", filtertest.TCP("", 8080)).Ensure(t.Context(),
		w); err == nil {
		t.Error("another container got the port")
	}
	contract.Remove(t, w, all[1]) // who stands by leaves nothing, and takes nothing
	leads("10.1.0.5")
	contract.Verify(t, w, all[0])
	contract.Verify(t, w, all[2])
	contract.Remove(t, w, all[0])
	leads("10.3.0.5")
	contract.Verify(t, w, all[2])
	if _, err := filtertest.PortsOf("c2", "one", "10.1.0.6/24", filtertest.TCP("", 8080)).Ensure(t.Context(),
		w); err == nil {
		t.Error("another container got the port")
	}
	contract.Remove(t, w, all[2])
	if s := filtertest.State(t, w); strings.Contains(s, "elements") {
		t.Errorf("left:\n%s", s)
	}
	contract.Ensure(t, w, filtertest.PortsOf("c2", "one", "10.1.0.6/24", filtertest.TCP("", 8080)))
}

// A port whose owner is gone without a DEL is taken over with all that the owner had, and the late DEL of
// the former owner takes nothing away.
//
// clause: P12
func TestPublishOfTheDead(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Wire(t, w)
	a := filtertest.PortsOf("c1", "net", "10.1.2.5/24", filtertest.TCP("", 8080), filtertest.TCP("192.0.2.1", 8081))
	contract.Ensure(t, w, a)
	b := filtertest.PortsOf("c2", "net", "10.1.2.6/24", filtertest.TCP("", 8080))
	other := &kernel.World{Host: w.Host, Store: w.Store}
	if _, err := b.Ensure(t.Context(), other); err == nil {
		t.Fatal("the port of a living container was taken")
	}
	contract.Host(t, w, "ip link del veth1") // as it goes when the namespace does
	contract.Ensure(t, other, b)
	contract.Verify(t, other, b)
	if s := filtertest.State(t, w); strings.Contains(s, "10.1.2.5") || strings.Contains(s, "8081") {
		t.Errorf("the dead still has:\n%s", s)
	}
	before := filtertest.State(t, w)
	contract.Remove(t, other, a)
	if after := filtertest.State(t, w); after != before {
		t.Errorf("the late DEL changed\n%s\nto\n%s", before, after)
	}
	contract.Verify(t, other, b)

	// IPAM gave its address to another container: then it is nobody's, too.
	c := filtertest.PortsOf("c3", "net", "10.1.2.6/24", filtertest.TCP("192.0.2.1", 8080))
	c.To6 = netip.Prefix{}
	contract.Ensure(t, other, c)
	contract.Remove(t, other, b)
	contract.Verify(t, other, c)
}

// Two networks may overlap. A claim of another network at the same container address, whose host end is unknown, is
// that of a living container: IPAM of this network cannot have given its address away.
func TestPublishOfAnOverlappingNetwork(t *testing.T) {
	for _, backend := range []string{"nftables", "iptables"} {
		t.Run(backend, func(t *testing.T) {
			w := contract.NewHost(t) // without a container, so that no claim knows a link
			ports := func(container, network string, m publish.Mapping) plan.Remover {
				p := filtertest.PortsOf(container, network, "10.1.2.5/24", m)
				if backend == "iptables" {
					return publish.PortsIPTables{Ports: p, MarkBit: 13}
				}
				return p
			}
			kept := ports("c1", "one", filtertest.TCP("192.0.2.1", 8080))
			contract.Ensure(t, w, kept)

			same := ports("c2", "two", filtertest.TCP("192.0.2.1", 8080))
			if _, err := same.Ensure(t.Context(), w); err == nil {
				t.Error("the port of a container of an overlapping network was taken")
			}
			contract.Verify(t, w, kept)

			beside := ports("c2", "two", filtertest.TCP("192.0.2.2", 8080))
			contract.Ensure(t, w, beside)
			contract.Verify(t, w, beside)
			contract.Verify(t, w, kept)

			contract.Remove(t, w, kept)
			contract.Verify(t, w, beside)
		})
	}
}

// A process that listens on a port that is published is not an error, for podman itself does.
func TestPublishWarnsOfListeners(t *testing.T) {
	l := filtertest.NewLab(t)
	l.Serve(l.W.Host, "host", "tcp", ":8080")
	var log bytes.Buffer
	defer slog.SetDefault(slog.Default())
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	l.Ensure(filtertest.PortsOfA(l, filtertest.TCP("", 8081)), l.W)
	if log.Len() > 0 {
		t.Errorf("warned for nothing: %s", &log)
	}
	l.Ensure(filtertest.PortsOfA(l, filtertest.TCP("", 8080)), l.W)
	if !strings.Contains(log.String(), "port=8080") {
		t.Errorf("not warned: %s", &log)
	}
}
