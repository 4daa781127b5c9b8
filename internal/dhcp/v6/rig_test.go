package v6

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/internal/kernel/procsys"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// A lan is a bridge in a namespace of its own, where servers are.
type lan struct {
	path string
	t    *testing.T
}

func newLAN(t *testing.T, addrs ...string) lan {
	n := lan{nstest.NewNS(t), t}
	n.ip("link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
	n.sysctl("net/ipv6/conf/br0/accept_dad", "0")
	n.sysctl("net/ipv6/conf/br0/addr_gen_mode", "1") // the kernel's would come some time after the first port
	n.ip("link", "set", "br0", "up")
	_, host, _ := strings.Cut(addrs[0], "::")
	for _, a := range append(addrs, "fe80::"+host) {
		n.ip("addr", "add", a, "dev", "br0", "nodad")
	}
	return n
}

func (n lan) ip(args ...string) string { return nstest.RunIn(n.t, n.path, "ip", args...) }

func (n lan) sysctl(key, value string) {
	n.t.Helper()
	ns, err := kernel.Open(n.path)
	if err == nil {
		_, err = procsys.Set(ns, procsys.Setting{Key: key, Value: value})
		ns.Close()
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

// a host is a namespace with a link on the bridge.
func (n lan) host(dad bool) dhcp.Link {
	n.t.Helper()
	path := nstest.NewNS(n.t)
	ns, err := kernel.Open(path)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(ns.Close)
	port := "p" + filepath.Base(path)
	n.ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", path)
	if !dad {
		if _, err := procsys.Set(ns, procsys.Setting{Key: "net/ipv6/conf/eth0/accept_dad", Value: "0"}); err != nil {
			n.t.Fatal(err)
		}
	}
	n.ip("link", "set", port, "master", "br0", "up")
	nstest.RunIn(n.t, path, "ip", "link", "set", "eth0", "up")
	l, err := rtnl.LinkByName(ns, "eth0")
	if err != nil {
		n.t.Fatal(err)
	}
	return dhcp.Link{NS: ns, Name: "eth0", Index: l.Index, MAC: l.MAC, MTU: l.MTU}
}

func owner(id string) dhcp.Ask {
	return dhcp.Ask{Owner: spec.Owner{Network: "lan", ContainerID: id, IfName: "eth0"}}
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, stop := context.WithTimeout(t.Context(), d)
	t.Cleanup(stop)
	return ctx
}

// untilSaid asks with more time every turn until the error says the words: on a busy machine routers and servers may take
// longer to answer than the client asks.
func untilSaid(t *testing.T, words string, ask func(context.Context) error) (err error) {
	t.Helper()
	for bound := 2 * time.Second; time.Now().Before(nstest.Deadline(t)); bound *= 2 {
		err = ask(within(t, bound))
		if err == nil || strings.Contains(err.Error(), words) {
			break
		}
	}
	wantErr(t, err, dhcp.ErrNoServer)
	if err != nil && !strings.Contains(err.Error(), words) {
		t.Errorf("no %q in %v", words, err)
	}
	return err
}

// A server is a program that runs on a lan, and what it says.
type server struct {
	t    *testing.T
	cmd  *exec.Cmd
	done chan struct{}

	mu   sync.Mutex
	said []string
	news chan struct{}
}

func (n lan) start(ready string, env []string, name string, args ...string) *server {
	n.t.Helper()
	nstest.NeedProgram(n.t, name)
	s := &server{t: n.t, done: make(chan struct{}), news: make(chan struct{}, 1)}
	s.cmd = exec.Command("nsenter", append([]string{"--net=" + n.path, name}, args...)...)
	s.cmd.Env = append(os.Environ(), env...)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	r, w := io.Pipe()
	s.cmd.Stdout, s.cmd.Stderr = w, w
	if err := s.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	go func() {
		lines := bufio.NewScanner(r)
		for lines.Scan() {
			s.mu.Lock()
			s.said = append(s.said, lines.Text())
			s.mu.Unlock()
			select {
			case s.news <- struct{}{}:
			default:
			}
		}
	}()
	go func() { s.cmd.Wait(); w.Close(); close(s.done) }()
	n.t.Cleanup(s.stop)
	s.await(ready)
	return s
}

func (s *server) stop() {
	s.cmd.Process.Kill()
	<-s.done
}

func (s *server) log() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.said, "\n")
}

// notable are the last lines of the log that are worth reading.
func (s *server) notable() string {
	var list []string
	for _, line := range strings.Split(s.log(), "\n") {
		if !strings.Contains(line, " DEBUG ") || strings.Contains(line, "_PACKET_") {
			list = append(list, line)
		}
	}
	return strings.Join(list[max(0, len(list)-30):], "\n")
}

// await waits until the server has said something.
func (s *server) await(text string) {
	s.t.Helper()
	s.awaitTimes(1, text)
}

func (s *server) awaitTimes(n int, text string) {
	s.t.Helper()
	limit := nstest.Context(s.t).Done()
	for strings.Count(s.log(), text) < n {
		select {
		case <-s.news:
		case <-s.done:
			if strings.Count(s.log(), text) < n {
				s.t.Fatalf("the server ended and never said %q:\n%s", text, s.notable())
			}
		case <-limit:
			s.t.Fatalf("the server did not say %q:\n%s", text, s.notable())
		}
	}
}

// keaSubnet has leases that are renewed after 2 s and over after 8.
const keaSubnet = `"valid-lifetime": 8, "preferred-lifetime": 7, "renew-timer": 2, "rebind-timer": 5,
"option-data": [{"name": "dns-servers", "data": "fd00:1::53, fd00:1::54"}, {"name": "domain-search", "data": "a.example, b.example"}%s],
"subnet6": [{"subnet": "fd00:1::/64", "interface": "br0", "id": 1, "pools": [{"pool": "%s"}]%s}]`

// kea serves a pool; options and subnet are more of the configuration, each beginning with a comma.
func (n lan) kea(pool, options, subnet string) *server {
	n.t.Helper()
	dir := n.t.TempDir()
	conf := fmt.Sprintf(`{"Dhcp6": {"interfaces-config": {"interfaces": ["br0"]}, "server-id": {"type": "LLT", "htype": 1, "time": 1, "identifier": "0A0B0C0D0E%s", "persist": false},
"lease-database": {"type": "memfile", "persist": false}, "loggers": [{"name": "kea-dhcp6", "severity": "DEBUG", "debuglevel": 50, "output_options": [{"output": "stdout"}]}], %s}}`,
		filepath.Base(dir)[1:], fmt.Sprintf(keaSubnet, options, pool, subnet))
	file := filepath.Join(dir, "kea.conf")
	if err := os.WriteFile(file, []byte(conf), 0o644); err != nil {
		n.t.Fatal(err)
	}
	return n.start("DHCP6_STARTED", []string{"KEA_PIDFILE_DIR=" + dir, "KEA_LOCKFILE_DIR=" + dir}, "kea-dhcp6", "-c", file)
}

func (n lan) dnsmasq(args ...string) *server {
	n.t.Helper()
	args = append([]string{"--no-daemon", "--conf-file=/dev/null", "--port=0", "--interface=br0", "--bind-interfaces",
		"--enable-ra",
		"--leasefile-ro", "--log-dhcp", "--user=root", "--group=root", "--pid-file="}, args...)
	return n.start("router advertisement", nil, "dnsmasq", args...)
}

// linkLocal is the lan's own.
func (n lan) linkLocal() string {
	n.t.Helper()
	f := strings.Fields(n.ip("-o", "-6", "addr", "show", "dev", "br0", "scope", "link"))
	if len(f) < 4 {
		n.t.Fatalf("no link-local address: %q", f)
	}
	a, _, _ := strings.Cut(f[3], "/")
	return a
}

func show(t *testing.T, l dhcp.Link, args ...string) string {
	t.Helper()
	return nstest.RunIn(t, l.NS.Path, "ip", append([]string{"-6"}, args...)...)
}

func wantErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error is %v, want %v", err, want)
	}
}
