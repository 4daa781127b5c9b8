package filter

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
	"github.com/fairlead-cni/fairlead/spec"
)

func tcp(host string, port uint16) PortMapping {
	m := PortMapping{Protocol: "tcp", HostPort: port, ContainerPort: 80}
	if host != "" {
		m.HostIP = contract.Addr(host)
	}
	return m
}

func publishOf(container, network, to string, ports ...PortMapping) Publish {
	to6 := "fd00::" + strings.NewReplacer(".", ":", "/24", "/64").Replace(to)
	return Publish{Owner: spec.Owner{Network: network, ContainerID: container, IfName: "eth0"}, To4: contract.Prefix(to),
		To6: contract.Prefix(to6), SNAT: true, Ports: ports}
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
			w := contract.NewHost(t)
			a := publishOf("c1", "net", "10.1.2.5/24", c.a)
			b := publishOf("c2", "net", "10.1.2.6/24", tcp("", 1), c.b)
			contract.Ensure(t, w, a)
			before := nftState(t, w)
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
			if after := nftState(t, w); after != before {
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
	var all []Publish
	for i, network := range []string{"one", "two", "three"} {
		all = append(all, publishOf("c1", network, fmt.Sprintf("10.%d.0.5/24", i+1), tcp("", 8080), tcp("192.0.2.1", 443)))
	}
	skeleton(t, w)
	for _, p := range all {
		contract.Ensure(t, w, p)
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
					n += strings.Count(s, fmt.Sprintf(e, identity.Tag(p.Owner), want))
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
	contract.Remove(t, w, all[1]) // who stands by leaves nothing, and takes nothing
	leads("10.1.0.5")
	contract.Verify(t, w, all[0])
	contract.Verify(t, w, all[2])
	contract.Remove(t, w, all[0])
	leads("10.3.0.5")
	contract.Verify(t, w, all[2])
	if _, err := publishOf("c2", "one", "10.1.0.6/24", tcp("", 8080)).Ensure(t.Context(), w); err == nil {
		t.Error("another container got the port")
	}
	contract.Remove(t, w, all[2])
	if s := nftState(t, w); strings.Contains(s, "elements") {
		t.Errorf("left:\n%s", s)
	}
	contract.Ensure(t, w, publishOf("c2", "one", "10.1.0.6/24", tcp("", 8080)))
}

// A port whose owner is gone without a DEL is taken over with all that the owner had, and the late DEL of
// the former owner takes nothing away.
//
// clause: P12
func TestPublishOfTheDead(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Wire(t, w)
	a := publishOf("c1", "net", "10.1.2.5/24", tcp("", 8080), tcp("192.0.2.1", 8081))
	contract.Ensure(t, w, a)
	b := publishOf("c2", "net", "10.1.2.6/24", tcp("", 8080))
	other := &kernel.World{Host: w.Host, Store: w.Store}
	if _, err := b.Ensure(t.Context(), other); err == nil {
		t.Fatal("the port of a living container was taken")
	}
	contract.Host(t, w, "ip link del veth1") // as it goes when the namespace does
	contract.Ensure(t, other, b)
	contract.Verify(t, other, b)
	if s := nftState(t, w); strings.Contains(s, "10.1.2.5") || strings.Contains(s, "8081") {
		t.Errorf("the dead still has:\n%s", s)
	}
	before := nftState(t, w)
	contract.Remove(t, other, a)
	if after := nftState(t, w); after != before {
		t.Errorf("the late DEL changed\n%s\nto\n%s", before, after)
	}
	contract.Verify(t, other, b)

	// IPAM gave its address to another container: then it is nobody's, too.
	c := publishOf("c3", "net", "10.1.2.6/24", tcp("192.0.2.1", 8080))
	c.To6 = netip.Prefix{}
	contract.Ensure(t, other, c)
	contract.Remove(t, other, b)
	contract.Verify(t, other, c)
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
