package nameserver

import (
	"net"
	"net/netip"
	"sync"
)

// limit bounds a number in total, per network and per client, so that one client cannot use up what others need. A
// container can take any number of addresses, and so be many clients. But it stays in its network.
type limit struct {
	all, each int

	mu  sync.Mutex
	sum int
	in  map[string]int // by network; "" is for clients in none
	of  map[netip.Addr]int
}

// shares is the number of networks that together reach the total. Each may take a share.
const shares = 4

func newLimit(all, each int) *limit {
	return &limit{all: all, each: each, in: map[string]int{}, of: map[netip.Addr]int{}}
}

// take counts one more for a client in a network. It reports false if a limit is reached.
func (l *limit) take(network string, client netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sum >= l.all || l.in[network] >= l.all/shares || l.of[client] >= l.each {
		return false
	}
	l.sum++
	l.in[network]++
	l.of[client]++
	return true
}

func (l *limit) give(network string, client netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sum--
	fewer(l.in, network)
	fewer(l.of, client)
}

// limited is a listener that closes connections beyond the limit.
type limited struct {
	net.Listener
	*limit
	network func(client netip.Addr) string
}

func (l limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		client := netip.Addr{}
		if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
			client = a.AddrPort().Addr()
		}
		if network := l.network(client); l.take(network, client) {
			return &counted{Conn: c, end: func() { l.give(network, client) }}, nil
		}
		c.Close()
	}
}

// counted is a connection that is no longer counted once closed.
type counted struct {
	net.Conn
	once sync.Once
	end  func()
}

func (c *counted) Close() error {
	c.once.Do(c.end)
	return c.Conn.Close()
}
