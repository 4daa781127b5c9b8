package v6

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/internal/kernel/packet"
	"github.com/fairlead-cni/fairlead/internal/kernel/procsys"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

// routers are those of a link, as they are heard of.
type routers struct {
	link  dhcp.Link
	conn  *packet.Inet6Conn
	stop  context.CancelFunc
	done  chan struct{}
	began time.Time

	mu    sync.Mutex
	list  []*advert     // the latest of each
	heard chan struct{} // closed at the next one
}

// routerLimit is how long one may take from the first time that it is asked: it may wait half a second (RFC 4861,
// 6.2.6), a message may be lost.
const routerLimit = 2500 * time.Millisecond

// listen asks routers to say what they are, again and again, and keeps what they say until Close. That goes on while
// the kernel makes sure of the link-local address, as RFC 4862 (4) has it: the first question comes from no host's
// address then.
func listen(ctx context.Context, l dhcp.Link) (*routers, error) {
	conn, err := packet.ListenICMP6(l.NS, l.Index, l.Name, routerAdvertisement)
	if err != nil {
		return nil, fmt.Errorf("link %s: %w", l.Name, err)
	}
	ctx, stop := context.WithCancel(ctx)
	r := &routers{link: l, conn: conn, stop: stop, done: make(chan struct{}), began: time.Now(),
		heard: make(chan struct{})}
	go r.run(ctx)
	return r, nil
}

// Close ends it.
func (r *routers) Close() {
	r.stop()
	<-r.done
}

func (r *routers) run(ctx context.Context) {
	defer close(r.done)
	defer r.conn.Close()
	ask := []byte{routerSolicitation, 7: 0}
	if len(r.link.MAC) == 6 {
		ask = append(append(ask, 1, 1), r.link.MAC...)
	}
	all := netip.AddrPortFrom(netip.AddrFrom16([16]byte{0: 0xff, 1: 2, 15: 2}), 0)
	var buf [9216]byte
	for pause := time.Second; ctx.Err() == nil; pause = min(2*pause, 16*time.Second) {
		err := r.conn.Send(ask, all)
		if err != nil {
			err = packet.SolicitRouters(r.link.NS, r.link.Index)
		}
		if err != nil {
			slog.Debug("routers were not asked", "link", r.link.Name, "error", err)
		}
		for deadline := time.Now().Add(jitter(pause, false)); ; {
			n, from, hops, err := r.conn.Receive(ctx, deadline, buf[:])
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil { // once, as when the link goes down
				slog.Debug("routers are not heard", "link", r.link.Name, "error", err)
				if ctx.Err() != nil || time.Now().After(deadline) {
					break
				}
				continue
			}
			a, err := parseAdvert(buf[:n], from.Addr(), hops)
			if err != nil {
				slog.Debug("a router advertisement was passed over", "link", r.link.Name, "from", from.Addr(), "reason",
					err)
				continue
			}
			r.add(a)
		}
	}
}

func (r *routers) add(a *advert) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.IndexFunc(r.list, func(h *advert) bool { return h.router == a.router }); i >= 0 {
		r.list[i] = a
	} else if len(r.list) < most {
		r.list = append(r.list, a)
	}
	close(r.heard)
	r.heard = make(chan struct{})
}

func (r *routers) now() ([]*advert, chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.list), r.heard
}

// await waits until good says yes to what was heard, for no longer than limit.
func (r *routers) await(ctx context.Context, limit time.Duration, good func([]*advert) bool) []*advert {
	ctx, stop := context.WithTimeout(ctx, limit)
	defer stop()
	for {
		list, next := r.now()
		if good(list) {
			return list
		}
		select {
		case <-next:
		case <-ctx.Done():
			return list
		}
	}
}

// best is the router that packets which leave the link go to; nil where none leads off it.
func best(list []*advert) (b *advert) {
	for _, a := range list {
		if a.lifetime > 0 && (b == nil || a.preference > b.preference) {
			b = a
		}
	}
	return b
}

// gateway completes a lease with what routers say. A link may have none.
func (r *routers) gateway(ctx context.Context, l *dhcp.Lease) {
	list := r.await(ctx, time.Until(r.began.Add(routerLimit)), func(list []*advert) bool { return best(list) != nil })
	if b := best(list); b != nil {
		l.Gateway, l.Routes = b.router, defaultBy(b.router)
		awaitDefaultRoute(ctx, r.link, b.router)
	}
	for _, a := range list {
		if a.mtu > 0 && a.mtu < r.link.MTU && (l.MTU == 0 || a.mtu < l.MTU) {
			l.MTU = a.mtu
		}
	}
}

// awaitDefaultRoute waits a little for the kernel's own default route by a router, which it makes a moment after we
// have heard of the router, if it is to make one. The program that then gives the link routes finds it there.
func awaitDefaultRoute(ctx context.Context, l dhcp.Link, router netip.Addr) {
	if v, _ := procsys.Get(l.NS, "net/ipv6/conf/"+l.Name+"/accept_ra_defrtr"); v != "1" {
		return
	}
	err := rtnl.Await(l.NS, ctx, time.Second, []uint{rtnl.IPv6RouteEvents}, func() (bool, error) {
		list, err := rtnl.Routes(l.NS, rtnl.RouteFilter{Family: rtnl.IPv6, Link: l.Index})
		return slices.ContainsFunc(list, func(h rtnl.Route) bool { return h.Dst.Bits() == 0 && h.Via == router }), err
	})
	if err != nil {
		slog.Debug("the kernel has no default route by the router", "link", l.Name, "router", router, "error", err)
	}
}

// explain adds to the silence of servers what routers say of how addresses are to be had.
func (r *routers) explain(err error) error {
	list, _ := r.now()
	for _, a := range list {
		switch {
		case a.managed:
			return fmt.Errorf("%w (router %v announces one)", err, a.router)
		case slices.ContainsFunc(a.prefixes, func(p advertPrefix) bool { return p.auto }):
			return fmt.Errorf("%w (router %v tells hosts to make their own addresses, as with \"slaac\")",
				err, a.router)
		}
	}
	if len(list) == 0 {
		return fmt.Errorf("%w, and no router", err)
	}
	return err
}
