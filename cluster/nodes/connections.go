package nodes

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"k8s.io/client-go/rest"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

// connections are the open connections to the API server. Those from an address that the host has lost are closed: the
// server can no longer answer them, and the kernel would try for a quarter of an hour.
type connections struct {
	mu   sync.Mutex
	open map[*connection]netip.Addr // local addresses
}

// A connection leaves the list of open ones when it is closed.
type connection struct {
	net.Conn
	list *connections
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.list.mu.Lock()
	delete(c.list.open, c)
	c.list.mu.Unlock()
	return c.Conn.Close()
}

// dial is for [rest.Config.Dial].
func (l *connections) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: conn, list: l}
	local, err := netip.ParseAddrPort(conn.LocalAddr().String())
	if err != nil {
		return c, nil // not a connection of IP
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[c] = local.Addr().Unmap().WithZone("")
	return c, nil
}

// CloseLost returns a configuration whose clients' connections are closed, until ctx ends, when the host loses their
// address. It calls failed when the kernel no longer says that.
func CloseLost(ctx context.Context, config *rest.Config, failed func(error)) (*rest.Config, error) {
	host, err := kernel.Open("")
	if err != nil {
		return nil, err
	}
	l := &connections{open: map[*connection]netip.Addr{}}
	go func() {
		defer host.Close()
		groups := []uint{rtnl.IPv4AddrEvents, rtnl.IPv6AddrEvents}
		err := rtnl.Watch(ctx, host, groups, func(int) {
			if addrs, err := rtnl.AllAddrs(host); err == nil { // if not, the next event asks again
				l.closeOthers(addrs)
			}
		})
		failed(fmt.Errorf("listen to the kernel's events about addresses: %w", err))
	}()
	c := rest.CopyConfig(config)
	c.Dial = l.dial
	return c, nil
}

// closeOthers closes the connections from none of the addresses.
func (l *connections) closeOthers(addrs []rtnl.LinkAddr) {
	has := map[netip.Addr]bool{}
	for _, a := range addrs {
		has[a.Prefix.Addr()] = true
	}
	var lost []*connection
	l.mu.Lock()
	for c, local := range l.open {
		if !has[local] && !local.IsLoopback() {
			lost = append(lost, c)
		}
	}
	l.mu.Unlock()

	for _, c := range lost {
		c.Close()
	}
}
