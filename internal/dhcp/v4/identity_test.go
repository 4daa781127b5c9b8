package v4

import (
	"context"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/insomniacslk/dhcp/dhcpv4"
)

// Up to the length that an option has room for an identifier is the reference's; longer ones differ where their owners
// do.
func TestClientID(t *testing.T) {
	for n, same := range map[int]bool{253: true, 254: true, 255: false, 256: false, 4000: false} {
		a := spec.Owner{ContainerID: "c", Network: strings.Repeat("n", n-len("c//eth0")), IfName: "eth0"}
		text := "\x00" + a.ContainerID + "/" + a.Network + "/" + a.IfName
		b := a
		b.IfName = "eth1"
		one, two := string(ClientID(a)), string(ClientID(b))
		if len(one) != min(n+1, 255) || one == two || (one == text) != same || string(ClientID(a)) != one ||
			one[:200] != text[:200] {
			t.Errorf("of %d bytes: %q, %q", n, one, two)
		}
		if ref := string(cut(a)); ref != text[:min(len(text), 255)] {
			t.Errorf("of %d bytes the reference's: %q", n, ref)
		}
	}
}

// Two whose names are alike for as long as an option is are two clients to a server, in every message about their
// leases; a lease that was got with the reference's identifier keeps it.
func TestLongOwners(t *testing.T) {
	w := newWire(t)
	ask := func(ifname string) dhcp.Ask {
		a := owner()
		a.Owner = spec.Owner{ContainerID: strings.Repeat("c", 64), Network: strings.Repeat("n", 200), IfName: ifname}
		return a
	}
	ids := map[string]bool{}
	for _, ifname := range []string{"eth0", "eth1"} {
		a := ask(ifname)
		c := do(t, func(ctx context.Context) (*dhcp.Lease, error) { return patient().Acquire(ctx, w.link, a) })
		q := w.next(t)
		id := string(q.Options[optClientID])
		w.send(t, answerTo(q, dhcpv4.MessageTypeOffer).ToBytes())
		q = w.next(t)
		w.send(t, answerTo(q, dhcpv4.MessageTypeAck).ToBytes())
		g := <-c
		if g.err != nil {
			t.Fatal(g.err)
		}
		if ids[id] || string(q.Options[optClientID]) != id || len(id) != 255 {
			t.Errorf("%s is %q and then %q", ifname, id, q.Options[optClientID])
		}
		ids[id] = true
		former := *g.lease
		former.State = nil
		for want, l := range map[string]*dhcp.Lease{id: g.lease, string(cut(a.Owner)): &former} {
			c = do(t, func(ctx context.Context) (*dhcp.Lease,
				error) {
				return patient().Confirm(ctx, w.link, a, l)
			})
			q = w.next(t)
			if string(q.Options[optClientID]) != want {
				t.Errorf("to confirm: %q, want %q", q.Options[optClientID], want)
			}
			w.send(t, answerTo(q, dhcpv4.MessageTypeAck).ToBytes())
			g := <-c
			if g.err != nil {
				t.Fatal(g.err)
			}
			if err := patient().Release(t.Context(), w.link, a, g.lease); err != nil {
				t.Fatal(err)
			}
			if q = w.next(t); string(q.Options[optClientID]) != want {
				t.Errorf("RELEASE: %q, want %q", q.Options[optClientID], want)
			}
		}
	}
}
