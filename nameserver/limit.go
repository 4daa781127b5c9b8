package nameserver

import (
	"net"
	"net/netip"
	"sync"
)

// limit bounds a number in total and per client, so that one client cannot use up what others need.
type limit struct {
	all, each int

	mu  sync.Mutex
	sum int
	of  map[netip.Addr]int
}

// take counts one more for the client. It reports false if a limit is reached.
func (l *limit) take(client netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sum >= l.all || l.of[client] >= l.each {
		return false
	}
	if l.of == nil {
		l.of = map[netip.Addr]int{}
	}
	l.sum++
	l.of[client]++
	return true
}

func (l *limit) give(client netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sum--
	if l.of[client]--; l.of[client] == 0 {
		delete(l.of, client)
	}
}

// limited is a listener that closes connections beyond the limit.
type limited struct {
	net.Listener
	*limit
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
		if l.take(client) {
			return &counted{Conn: c, end: func() { l.give(client) }}, nil
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
