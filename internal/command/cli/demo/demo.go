// Package demo is fairlead demo: containers and a server in a throw-away host, whose answers and remains are
// counted. No other package uses it.
package demo

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/run"
	"github.com/fairlead-cni/fairlead/internal/command/cli/term"
	"github.com/spf13/cobra"
)

// Command is `fairlead demo`.
func Command(a *app.App) *cobra.Command {
	return &cobra.Command{
		Use: "demo", GroupID: "run", Args: app.Operands(""),
		Short: "See it work: three containers, a published port and the host, in a throw-away host",
		Long: `Start a web server with a published port, a client beside it and a neighbour on another network, in a
throw-away host. Fetch a page from every side, by IPv4, IPv6 and name. Then remove everything and show that nothing
is left. Your machine is not changed, and an ordinary user needs no sudo.

Exit status: 0 all fetches succeeded, and nothing is left; 1 otherwise.`,
		RunE: func(c *cobra.Command, args []string) (err error) {
			a.Status, err = run.InHost(a, []string{"/proc/self/exe", demoName, "-o", a.Output})
			return err
		},
	}
}

const demoName = "demo-inside" // hidden from `fairlead help`

// InsideCommand returns the hidden command that is the demo inside its throw-away host.
func InsideCommand(a *app.App) *cobra.Command {
	return &cobra.Command{
		Use: demoName, Hidden: true, Args: app.Operands(""),
		RunE: func(c *cobra.Command, args []string) error {
			runtime.LockOSThread() // the members get a signal when this thread exits
			d := &demo{App: a, Style: a.Style(a.Stdout)}
			defer d.end()
			if err := d.show(); err != nil {
				return app.Fail(app.ExitFailure,
					"To look around in a host like this one: `fairlead host`, then `fairlead run`.",
					"demo: %w", err)
			}
			return nil
		},
	}
}

// The demo's second network plays the outside: the published port is fetched from there by the host's address on it.
// Its subnets are those reserved for documentation.
const (
	outsideBridge = "outside0"
	outsideList   = `{
  "cniVersion": "1.1.0",
  "name": "outside",
  "plugins": [{
    "type": "bridge", "bridge": "` + outsideBridge + `", "isDefaultGateway": true,
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "192.0.2.0/24"}]%s]}
  }]
}
`
	outsideRange6 = `, [{"subnet": "2001:db8::/64"}]`
)

// demoTime limits each step, which should take a moment.
const demoTime = 30 * time.Second

type demo struct {
	*app.App
	term.Style
	members []*member
	answers []demoAnswer
}

// member is a container of the demo: a `fairlead run`.
type member struct {
	name  string
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Scanner
	said  bytes.Buffer // its stderr
	addrs []netip.Prefix
}

// addr returns the member's address of a family.
func (m *member) addr(v6 bool) netip.Addr {
	for _, p := range m.addrs {
		if p.Addr().Is6() == v6 {
			return p.Addr()
		}
	}
	return netip.Addr{}
}

// start starts a member and waits until it is ready.
func (d *demo) start(name string, flags []string, command ...string) (*member, error) {
	args := append([]string{"run", "--name", name}, flags...)
	m := &member{name: name, cmd: exec.Command("/proc/self/exe",
		append(append(args, "--", "/proc/self/exe"), command...)...)}
	m.cmd.Stderr = &m.said
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	var err error
	if m.in, err = m.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	m.out = bufio.NewScanner(out)
	if err := m.cmd.Start(); err != nil {
		return nil, err
	}
	d.members = append(d.members, m)
	if _, err := m.line(); err != nil {
		return nil, err
	}
	return m, nil
}

// line returns the next line that the member prints.
func (m *member) line() ([]byte, error) {
	timer := time.AfterFunc(demoTime, func() { m.cmd.Process.Kill() })
	defer timer.Stop()
	if m.out.Scan() {
		return m.out.Bytes(), nil
	}
	err := m.cmd.Wait()
	if said := strings.TrimSpace(m.said.String()); said != "" {
		return nil, fmt.Errorf("%s ended: %s", m.name, said)
	}
	return nil, fmt.Errorf("%s ended: %w", m.name, errors.Join(err, io.ErrUnexpectedEOF))
}

// fetch lets the member fetch from addr.
func (m *member) fetch(addr string) fetched {
	if m == nil { // the host itself
		return fetch(addr)
	}
	var f fetched
	_, err := fmt.Fprintln(m.in, addr)
	if err == nil {
		var line []byte
		if line, err = m.line(); err == nil {
			err = json.Unmarshal(line, &f)
		}
	}
	if err != nil {
		f.Error = err.Error()
	}
	return f
}

// stop ends the member as a user would: the client by the end of its input, the server by a signal.
func (m *member) stop() error {
	if m.cmd.ProcessState != nil {
		return nil
	}
	timer := time.AfterFunc(demoTime, func() { m.cmd.Process.Kill() })
	defer timer.Stop()
	m.in.Close()
	if m.name == "web" {
		m.cmd.Process.Signal(os.Interrupt)
	}
	status, err := run.ExitStatus(m.cmd.Wait())
	if err == nil && status != 0 && status != app.ExitSignal+2 {
		err = fmt.Errorf("%s ended with status %d: %s", m.name, status, strings.TrimSpace(m.said.String()))
	}
	return err
}

// end stops the members that run after an error.
func (d *demo) end() {
	for _, m := range slices.Backward(d.members) {
		m.stop()
	}
}

// demoAnswer is one fetch of the demo.
type demoAnswer struct {
	From string `json:"from"`
	URL  string `json:"url"`
	Way  string `json:"way"`
	fetched
}

func (d *demo) show() error {
	ipv6 := netconf.IPv6Here()
	if err := d.prepare(ipv6); err != nil {
		return err
	}
	before, err := count()
	if err != nil {
		return err
	}
	d.say("%s\n", d.Bold("A throw-away host of its own: the machine is not changed."))
	names, err := d.serveNames()
	if err != nil {
		return err
	}
	defer names.stop()
	began := time.Now()
	web, err := d.start("web", []string{"-p", "8080:80"}, serveName, "web")
	if err != nil {
		return err
	}
	client, err := d.start("client", nil, fetchName)
	if err != nil {
		return err
	}
	neighbour, err := d.start("neighbour", []string{"--net", "outside"}, fetchName)
	if err != nil {
		return err
	}
	if err := d.addresses(); err != nil {
		return err
	}
	during, err := count()
	if err != nil {
		return err
	}
	d.picture(time.Since(began))
	if err := d.askAll(web, client, neighbour, ipv6); err != nil {
		return err
	}
	if names != nil {
		d.ask(client, "web:80", "by name")
	}
	d.table()

	began = time.Now()
	for _, m := range slices.Backward(d.members) {
		if err := m.stop(); err != nil {
			return err
		}
	}
	took := time.Since(began)
	after, err := count()
	if err != nil {
		return err
	}
	return d.verdict(before, during, after, took)
}

// askAll fetches from the server, from each place that should reach it, in both families if there is IPv6.
func (d *demo) askAll(web, client, neighbour *member, ipv6 bool) error {
	for _, v6 := range []bool{false, true} {
		if v6 && !ipv6 {
			d.say("IPv6: this kernel has none\n")
			break
		}
		outside, err := bridgeAddr(outsideBridge, v6)
		if err != nil {
			return err
		}
		local := outside
		if !v6 {
			local = netip.AddrFrom4([4]byte{127, 0, 0, 1}) // the kernel does not route from ::1 to another interface
		}
		server := web.addr(v6)
		d.ask(client, netip.AddrPortFrom(server, 80).String(), "beside it")
		d.ask(nil, netip.AddrPortFrom(server, 80).String(), "directly")
		d.ask(nil, netip.AddrPortFrom(local, 8080).String(), "published port")
		published := netip.AddrPortFrom(outside, 8080).String()
		d.ask(client, published, "published port")
		d.ask(neighbour, published, "published port")
	}
	return nil
}

// prepare writes the network configurations; the default network gets names for containers. The user's environment
// and other plugins do not affect the demo.
func (d *demo) prepare(ipv6 bool) error {
	for _, name := range []string{"CNI_PATH", "NETCONFPATH", "CNI_ARGS", "CAP_ARGS", "CNI_IFNAME"} {
		os.Unsetenv(name)
	}
	own, err := netconf.OwnPlugins()
	if err != nil {
		return err
	}
	os.Setenv("CNI_PATH", own)
	range6 := ""
	if ipv6 {
		range6 = outsideRange6
	}
	list := netconf.DefaultList(ipv6)
	if resolvable() {
		list = netconf.DefaultList(ipv6, netconf.Object{"type": "alias"})
	}
	return errors.Join(os.MkdirAll(netconf.ConfDir(), 0o755),
		os.WriteFile(netconf.ConfDir()+"/05-"+netconf.DefaultNetwork+".conflist", list, 0o644),
		os.WriteFile(netconf.ConfDir()+"/10-outside.conflist", fmt.Appendf(nil, outsideList, range6), 0o644))
}

// addresses finds out the members' addresses.
func (d *demo) addresses() error {
	list, problems := attached.List("")
	for _, m := range d.members {
		for _, c := range list {
			if c.ContainerID == m.name {
				m.addrs = attached.OwnAddresses(c)
			}
		}
		if len(m.addrs) == 0 {
			problems = append(problems, fmt.Errorf("%s has no address", m.name))
		}
	}
	return errors.Join(problems...)
}

// bridgeAddrs returns the addresses of a link of the host, without link-local ones.
func bridgeAddrs(name string) (all []netip.Prefix, err error) {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return nil, fmt.Errorf("link %s: %w", name, err)
	}
	addrs, err := link.Addrs()
	for _, addr := range addrs {
		if p, err := netip.ParsePrefix(addr.String()); err == nil && !p.Addr().IsLinkLocalUnicast() {
			all = append(all, p)
		}
	}
	return all, err
}

func bridgeAddr(name string, v6 bool) (netip.Addr, error) {
	all, err := bridgeAddrs(name)
	for _, p := range all {
		if p.Addr().Is6() == v6 {
			return p.Addr(), nil
		}
	}
	return netip.Addr{}, errors.Join(err, fmt.Errorf("link %s has no such address", name))
}

// ask fetches from a member or the host, and keeps the answer.
func (d *demo) ask(m *member, at, way string) {
	from := "host"
	if m != nil {
		from = m.name
	}
	d.answers = append(d.answers, demoAnswer{from, "http://" + strings.TrimSuffix(at, ":80") + "/", way, m.fetch(at)})
}

func (d *demo) say(format string, args ...any) {
	if !d.JSON() {
		fmt.Fprintf(d.Stdout, format, args...)
	}
}
