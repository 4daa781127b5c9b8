package plugin_test

import (
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
)

// places are the namespaces of a test, by name, and those in them that answer.
type places struct {
	*testing.T
	ns   map[string]*kernel.NS
	addr map[string][2]string // IPv4 and IPv6
}

func newPlaces(t *testing.T) places {
	return places{t, map[string]*kernel.NS{}, map[string][2]string{}}
}

func (p places) open(name, path string) {
	p.Helper()
	ns, err := kernel.Open(path)
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(ns.Close)
	p.ns[name] = ns
}

func (p places) sh(where, script string) string {
	p.Helper()
	return nstest.RunIn(p, p.ns[where].Path, "sh", "-ec", script)
}

// serve answers at port 80 with the name of who answers.
func (p places) serve(name string) {
	p.Helper()
	err := p.ns[name].Do(func() error {
		l, err := net.Listen("tcp", ":80")
		if err != nil {
			return err
		}
		p.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				io.WriteString(c, name)
				c.Close()
			}
		}()
		return nil
	})
	if err != nil {
		p.Fatal(err)
	}
}

// A site is a host with two container networks and a neighbour on its uplink, who has routes to both networks:
//
//	outside 192.0.2.2 ── wan 192.0.2.1 host ── br-a 10.81.0.1 ── a1 (port 8080 published), a2
//	                                       └── br-b 10.82.0.1 ── b1
type site struct {
	places     // host, outside, a1, a2, b1
	host       string
	runners    map[string]*runner // by network
	containers map[string]*attachment
	datagrams  map[string]chan string // what came to port 53, by who listens there
	port       int                    // the last that a datagram was sent from
}

// emptySite has the host alone.
func emptySite(t *testing.T) *site {
	s := &site{newPlaces(t), nstest.NewNS(t), map[string]*runner{}, map[string]*attachment{}, map[string]chan string{}, 10000}
	s.open("host", s.host)
	return s
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := emptySite(t)
	outside := nstest.NewNS(t)
	s.open("outside", outside)
	s.sh("host", "ip link set lo up; sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1; ip link add wan type veth peer name eth0 netns "+strings.TrimPrefix(outside, "/run/netns/")+
		"; sysctl -qw net.ipv6.conf.wan.accept_dad=0; ip addr add 192.0.2.1/24 dev wan; ip addr add 2001:db8::1/64 dev wan nodad; ip link set wan up")
	s.sh("outside", "ip link set lo up; sysctl -qw net.ipv6.conf.eth0.accept_dad=0; ip addr add 192.0.2.2/24 dev eth0; ip addr add 2001:db8::2/64 dev eth0 nodad; ip link set eth0 up; ip route add default via 192.0.2.1; ip route add default via 2001:db8::1")
	s.addr["outside"] = [2]string{"192.0.2.2", "2001:db8::2"}
	s.serve("outside")
	return s
}

// network makes the runner of network a or b, with further plugins after bridge and portmap.
func (s *site) network(name string, more ...string) *runner {
	i := int(name[0]-'a') + 81
	list := []string{fmt.Sprintf(`"type":"bridge","bridge":"br-%s","isDefaultGateway":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.%d.0.0/24"}],[{"subnet":"fd00:%d::/64"}]]}`, name, i, i)}
	r := newRunner(s.T, chain{filepath.Base(s.host) + "-" + name, append(list, more...), nil})
	r.host = s.host
	s.runners[name] = r
	return r
}

const published = `"type":"portmap","runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80}]}`

// add attaches a container, a1 say, to its network and lets it serve port 80.
func (s *site) add(name string) {
	s.Helper()
	a := &attachment{id: name, netns: nstest.NewNS(s)}
	r := s.runners[name[:1]]
	if err := r.add(a); err != nil {
		s.Fatalf("add %s: %v", name, err)
	}
	s.containers[name] = a
	s.open(name, a.netns)
	s.addr[name] = [2]string{a.text("IP4"), a.text("IP6")}
	s.serve(name)
	s.Cleanup(func() {
		if err := r.del(a); err != nil {
			s.Errorf("del %s: %v", name, err)
		}
	})
}

// dial asks who answers at an address, from a namespace.
func (s *site) dial(from, addr string, patience time.Duration) (who string, err error) {
	d := net.Dialer{Timeout: patience}
	var c net.Conn
	if err := s.ns[from].Do(func() (err error) { c, err = d.Dial("tcp", addr); return err }); err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	b, err := io.ReadAll(c)
	return string(b), err
}

// expect is who answers, or "" where nobody may.
func (s *site) expect(what, from, addr, want string) {
	s.Helper()
	patience := nstest.Patience(s)
	if want == "" {
		patience = 400 * time.Millisecond
	}
	if got, err := s.dial(from, addr, patience); got != want {
		s.Errorf("%s: from %s to %s: %q (%v), want %q", what, from, addr, got, err, want)
	}
}

// policy expects of the site what a policy, on both networks, promises.
func (s *site) policy(policy string) {
	s.Helper()
	s.routed(policy)
	for _, host := range []string{"192.0.2.1", "2001:db8::1"} {
		pub := net.JoinHostPort(host, "8080")
		s.expect("from another network, published", "b1", pub, "a1")
		s.expect("from the same network, published", "a2", pub, "a1")
		s.expect("from the container itself, published", "a1", pub, "a1")
	}
}

// routed is policy without what containers ask of published ports.
func (s *site) routed(policy string) {
	s.Helper()
	open := func(who string, unless ...string) string {
		for _, p := range unless {
			if p == policy {
				return ""
			}
		}
		return who
	}
	for v, host := range []string{"192.0.2.1", "2001:db8::1"} {
		at := func(name string) string { return net.JoinHostPort(s.addr[name][v], "80") }
		pub := net.JoinHostPort(host, "8080")
		s.expect("to the outside", "a1", at("outside"), "outside")
		s.expect("from outside, published", "outside", pub, "a1")
		s.expect("from the host", "host", at("a1"), "a1")
		s.expect("within a network", "a2", at("a1"), open("a1", "isolated"))
		s.expect("between networks", "b1", at("a1"), open("a1", "same-bridge", "isolated", "strict"))
		s.expect("between networks, back", "a1", at("b1"), open("b1", "same-bridge", "isolated", "strict"))
		s.expect("from outside, directly", "outside", at("a1"), open("a1", "strict"))
	}
}
