package conformance

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
)

func itoa(n int) string { return strconv.Itoa(n) }

func isNoLink(err error) bool { return errors.Is(err, rtnl.ErrNoLink) }

// alter runs a function on an open namespace. A link that is not there is one that the plugin should have made.
func alter(path string, fn func(*kernel.NS) error) error {
	_, err := look(path, func(ns *kernel.NS) (struct{}, error) { return struct{}{}, fn(ns) })
	var missing rtnl.NoLink
	if errors.As(err, &missing) {
		return differs("the interface "+missing.Name+" in the container", "none")
	}
	return err
}

// bridge makes a bridge, which is up, with an address if one is given. Every kernel has bridges.
func bridge(ns *kernel.NS, name string, addr netip.Prefix) (index int, err error) {
	mac := net.HardwareAddr{2, 0, 10, 90, 0, 1}
	if err := rtnl.AddBridge(ns, name, mac, 1500, false); err != nil {
		return 0, err
	}
	if err := rtnl.SetLink(ns, name, rtnl.LinkChange{Up: true}); err != nil {
		return 0, err
	}
	index, err = rtnl.IndexOf(ns, name)
	if err == nil && addr.IsValid() {
		err = rtnl.AddAddr(ns, index, rtnl.Addr{Prefix: addr})
	}
	return index, err
}

// route adds a route by a link.
func route(path, name string, dst netip.Prefix, via netip.Addr) error {
	return alter(path, func(ns *kernel.NS) error {
		index, err := rtnl.IndexOf(ns, name)
		if err != nil {
			return err
		}
		return rtnl.AddRoute(ns, rtnl.Route{Dst: dst, Via: via, Link: index}, true)
	})
}

// remove deletes a link of a namespace.
func remove(path, name string) error {
	return alter(path, func(ns *kernel.NS) error {
		index, err := rtnl.IndexOf(ns, name)
		if err != nil {
			return err
		}
		return rtnl.DelLink(ns, index)
	})
}

// removeLink removes the interface of a container, and removeNS its namespace.
func removeLink(c *container) { require(remove(c.netns, c.ifName)) }

func removeNS(c *container) { require(nstest.RemoveNS(c.netns)) }

// answerLimit is how long a packet may take on a busy machine. Only a check that fails waits for it.
const answerLimit = 10 * time.Second

// talk has a program in one namespace send a word to a listener in another, which sends it back.
func talk(from, to string, addr netip.Addr) error {
	return talkTo(from, to, netip.AddrPortFrom(addr, 7777), netip.AddrPortFrom(addr, 7777))
}

// talkTo is talk with the address that the listener has, and the one that the other dials.
func talkTo(from, to string, listen, dial netip.AddrPort) error {
	var l net.Listener
	err := nstest.In(to, func() (err error) { l, err = net.Listen("tcp", listen.String()); return err })
	if err != nil {
		return differs("the address "+listen.Addr().String()+" on a link that is up", "%v", err)
	}
	defer l.Close()
	go func() {
		if conn, err := l.Accept(); err == nil {
			io.Copy(conn, conn)
			conn.Close()
		}
	}()
	const word = "hello"
	var got []byte
	err = nstest.In(from, func() error {
		conn, err := net.DialTimeout("tcp", dial.String(), answerLimit)
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, word); err != nil {
			return err
		}
		got = make([]byte, len(word))
		_, err = io.ReadFull(conn, got)
		return err
	})
	if err != nil || string(got) != word {
		return differs(dial.String()+" to answer", "%v", err)
	}
	return nil
}

// under makes the interface that a chained plugin is given: a veth pair whose host end is a port of a bridge with the
// gateway's address.
func (t *trial) under(c *container) error {
	const below = "under0"
	host, err := kernel.Open("")
	if err != nil {
		return err
	}
	defer host.Close()
	ns, err := kernel.Open(c.netns)
	if err != nil {
		return err
	}
	defer ns.Close()
	master, err := rtnl.IndexOf(host, below)
	if isNoLink(err) {
		master, err = bridge(host, below, netip.PrefixFrom(gateway(), 24))
	}
	if err != nil {
		return err
	}
	if err := rtnl.AddVeth(host, rtnl.VethPair{Host: port(c), Name: c.ifName, NS: ns, Master: master}); err != nil {
		return err
	}
	index, err := rtnl.IndexOf(ns, c.ifName)
	if err != nil {
		return err
	}
	err = errors.Join(rtnl.SetLink(ns, c.ifName, rtnl.LinkChange{Up: true}),
		rtnl.AddAddr(ns, index, rtnl.Addr{Prefix: c.addr}),
		rtnl.AddRoute(ns, rtnl.Route{Dst: netip.MustParsePrefix("0.0.0.0/0"), Via: gateway(), Link: index}, true))
	if err != nil {
		return err
	}
	c.given, err = made(host, ns, c, below, port(c))
	c.result = c.given
	return err
}

// made is the result of the plugin that would have made such an interface.
func made(host, ns *kernel.NS, c *container, names ...string) (*spec.Result, error) {
	r := &spec.Result{CNIVersion: spec.Newest, DNS: spec.DNS{Nameservers: []string{nameserver}},
		Routes: []spec.Route{{Dst: netip.MustParsePrefix("0.0.0.0/0")}}}
	for _, name := range append(names, c.ifName) {
		from, sandbox := host, ""
		if name == c.ifName {
			from, sandbox = ns, c.netns
		}
		l, err := rtnl.LinkByName(from, name)
		if err != nil {
			return nil, err
		}
		r.Interfaces = append(r.Interfaces, spec.Interface{Name: name, MAC: l.MAC.String(), Sandbox: sandbox})
	}
	last := len(r.Interfaces) - 1
	r.IPs = []spec.IP{{Address: c.addr, Gateway: gateway(), Interface: &last}}
	return r, nil
}

// ofContainer are the lines of a state that are about the container.
func ofContainer(state []string) (lines []string) {
	for _, line := range state {
		if strings.HasPrefix(line, "container ") {
			lines = append(lines, line)
		}
	}
	return lines
}

// unchanged is the complaint about lines of a state that came or went.
func unchanged(what string, before, after []string) error {
	var changes []string
	for _, line := range after {
		if !slices.Contains(before, line) {
			changes = append(changes, "+ "+line)
		}
	}
	for _, line := range before {
		if !slices.Contains(after, line) {
			changes = append(changes, "- "+line)
		}
	}
	if len(changes) > 0 {
		return differs(what+" to leave everything as it was", "%s", strings.Join(changes, "; "))
	}
	return nil
}

// failing has the suite's IPAM plugin fail at a verb.
func failing(verb string, code spec.Code) change {
	return func(r *request) {
		r.ipam = func(o *ipamOrder) {
			o.Fail = map[string]spec.Error{verb: {Code: code, Msg: ipamMessage, Details: ipamDetails}}
		}
	}
}

// warm attaches and detaches a container, so that what the network itself needs is there.
func (t *trial) warm() {
	c := t.attached("warm")
	t.containers--
	t.succeed("DEL", "DEL", c)
	t.withdraw(c)
	require(alter(c.netns, removeLinks)) // the kernel removes those of a namespace that ends some time later
	removeNS(c)
}

// removeLinks removes the links of a namespace, but for those that the kernel makes with it.
func removeLinks(ns *kernel.NS) error {
	all, err := rtnl.Links(ns)
	for _, l := range all {
		if l.Kind != "" {
			_ = rtnl.DelLink(ns, l.Index)
		}
	}
	return err
}

// oldest is the first version that the plugin can be called in: 0.3.0 brought prevResult.
func (t *trial) oldest() spec.Version {
	if t.subject.Kind == Chained || t.subject.Kind == Meta {
		return spec.V030
	}
	return spec.V010
}

// spoken are the versions from one on that the plugin speaks, and the protocol has.
func (t *trial) spoken(from spec.Version) (list []spec.Version) {
	for _, v := range spec.Versions() {
		if v.AtLeast(from.Or010()) && slices.Contains(t.subject.Versions, v) {
			list = append(list, v)
		}
	}
	return list
}

// withdraw removes what under made for a chained plugin: the host end of the pair, and so the pair.
func (t *trial) withdraw(c *container) {
	if t.subject.Kind != Chained {
		return
	}
	require(alter("", func(ns *kernel.NS) error {
		index, err := rtnl.IndexOf(ns, port(c))
		if isNoLink(err) {
			return nil // it went with its namespace
		}
		if err != nil {
			return err
		}
		return rtnl.DelLink(ns, index)
	}))
}

// port is the host end of the pair that under makes.
func port(c *container) string { return "port" + itoa(int(c.addr.Addr().As4()[3])) }
