package conformance

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// interfaces is the model that makes an interface.
func (m *model) interfaces() *spec.Error {
	switch m.verb {
	case "ADD":
		return m.addInterface()
	case "CHECK":
		return m.checkInterface()
	case "DEL":
		return m.delInterface()
	case "GC":
		return m.gcInterfaces()
	}
	_, e := m.delegate("STATUS")
	if m.has("P21/ready") {
		e = failed(spec.CodeUnavailable, "not ready")
	}
	return e
}

func (m *model) addInterface() *spec.Error {
	if adopted, e := m.adopt(); adopted || e != nil {
		return e
	}
	name := m.ifName
	if m.has("P9/name") {
		name = "eth0"
	}
	l, err := link(m.netns, name)
	if err != nil {
		return ioError(err)
	}
	if l != nil && m.has("P10/existing") {
		err = remove(m.netns, name)
	} else if l != nil {
		return failed(spec.CodeConfig, "the interface %s exists", name)
	}
	if err != nil {
		return ioError(err)
	}
	r, e := m.delegate("ADD")
	if e != nil {
		if !m.has("I3/failed") {
			m.delegate("DEL")
		}
		if m.has("P11/failed") {
			ioError(writeState("failed"))
		}
		return e
	}
	if err := m.connect(name, r); err != nil {
		m.delegate("DEL")
		return ioError(err)
	}
	if dns := m.conf.RuntimeConfig.DNS; dns.Servers != nil && !m.has("K4/dns") {
		r.DNS.Nameservers, r.DNS.Search = dns.Servers, dns.Searches
	}
	if m.has("C11/dns") {
		r.DNS = spec.DNS{}
	}
	return m.prints(r)
}

// connect makes the pair, and completes the result.
func (m *model) connect(name string, r *spec.Result) error {
	host, err := kernel.Open("")
	if err != nil {
		return err
	}
	defer host.Close()
	ns, err := kernel.Open(m.netns)
	if err != nil {
		return err
	}
	defer ns.Close()
	done, err := host.Turn(testContext(), "model")
	if err != nil {
		return err
	}
	master, err := rtnl.IndexOf(host, "model0")
	if isNoLink(err) {
		master, err = bridge(host, "model0", netip.PrefixFrom(gateway(), 24))
	}
	done()
	if err != nil {
		return err
	}
	if m.has("P24/traffic") || m.has("P26/traffic") {
		master = 0
	}
	if err := rtnl.AddVeth(host, rtnl.VethPair{Host: m.hostEnd(), Name: name, NS: ns, Master: master}); err != nil {
		return err
	}
	end, err := rtnl.IndexOf(host, m.hostEnd())
	if err != nil {
		return err
	}
	if err := rtnl.SetAlias(host, end, m.owner()); err != nil {
		return err
	}
	index, err := rtnl.IndexOf(ns, name)
	if err != nil {
		return err
	}
	if err := rtnl.SetLink(ns, name, rtnl.LinkChange{Up: true, MAC: m.mac()}); err != nil {
		return err
	}
	if r.Interfaces, err = m.listed(host, ns, name); err != nil {
		return err
	}
	return m.address(ns, index, r)
}

// listed are the interfaces of the result.
func (m *model) listed(host, ns *kernel.NS, name string) ([]spec.Interface, error) {
	outer, err := rtnl.LinkByName(host, m.hostEnd())
	if err != nil {
		return nil, err
	}
	inner, err := rtnl.LinkByName(ns, name)
	if err != nil {
		return nil, err
	}
	list := []spec.Interface{{Name: m.hostEnd(), MAC: outer.MAC.String()},
		{Name: name, MAC: inner.MAC.String(), Sandbox: m.netns}}
	if m.has("P24/interfaces") {
		list[1].MAC = "02:00:00:00:00:99"
	}
	return list, nil
}

// address gives the interface the addresses and routes of the result.
func (m *model) address(ns *kernel.NS, index int, r *spec.Result) error {
	for i := range r.IPs {
		inner := 1
		if m.has("P24/addresses") {
			inner = 0
		}
		r.IPs[i].Interface = &inner
		if err := rtnl.AddAddr(ns, index, rtnl.Addr{Prefix: r.IPs[i].Address}); err != nil {
			return err
		}
	}
	var kept []spec.Route
	for _, route := range r.Routes {
		made := rtnl.Route{Dst: route.Dst, Via: r.IPs[0].Gateway, Link: index}
		if m.has("P25/metric") {
			made.Priority = 100
		}
		if m.has("P26/gateway") {
			made.Via = netip.Addr{}
		}
		err := rtnl.AddRoute(ns, made, true)
		if errors.Is(err, os.ErrExist) && !m.has("P25/default") {
			continue // another network's
		}
		if err != nil {
			return err
		}
		kept = append(kept, route)
	}
	r.Routes = kept
	return nil
}

func (m *model) mac() net.HardwareAddr {
	mac, _ := m.wantedMAC() // the error was one of the configuration
	return mac
}

func (m *model) checkInterface() *spec.Error {
	if _, e := m.delegate("CHECK"); e != nil && !m.has("I2/check") {
		return e
	}
	if m.has("P17/at-once") {
		return failed(spec.CodeTryAgain, "not settled")
	}
	if m.conf.PrevResult == nil {
		return nil
	}
	r, err := spec.DecodeResult(m.conf.PrevResult, m.version)
	if err != nil {
		return ioError(err)
	}
	l, err := link(m.netns, m.ifName)
	if err != nil || l == nil {
		if m.has("P14/interface") {
			return nil
		}
		return failed(spec.CodeIO, "the interface %s is gone", m.ifName)
	}
	there, err := routes(m.netns)
	if err != nil {
		return ioError(err)
	}
	for _, want := range r.IPs {
		if has, err := hasAddress(m.netns, m.ifName, want.Address); (err != nil || !has) && !m.has("P14/address") {
			return failed(spec.CodeIO, "the address %s is gone", want.Address)
		}
	}
	for _, want := range r.Routes {
		found := slices.ContainsFunc(there, func(r rtnl.Route) bool { return r.Dst == want.Dst })
		if !found && !m.has("P14/route") && !m.has("P14/address") {
			return failed(spec.CodeIO, "the route %s is gone", want.Dst)
		}
	}
	if m.has("P16/route") && len(there) > 2 {
		return failed(spec.CodeIO, "there are other routes")
	}
	return nil
}

func (m *model) delInterface() *spec.Error {
	gone := true
	if m.netns != "" {
		_, err := link(m.netns, m.ifName)
		gone = err != nil
	}
	if gone && m.netns != "" && m.has("P12/netns-gone") {
		return failed(spec.CodeUnknown, "the namespace is gone")
	}
	if !gone || !m.has("P13/delegate") {
		if _, e := m.delegate("DEL"); e != nil {
			return e
		}
	}
	end, err := link("", m.hostEnd())
	switch {
	case err != nil:
		return ioError(err)
	case end == nil && !gone && (m.has("P12/interface-gone") && m.conf.PrevResult != nil || m.has("P12/twice")):
		return failed(spec.CodeIO, "the interface is gone")
	case end == nil && m.has("P12/never") && m.conf.PrevResult == nil:
		return failed(spec.CodeUnknown, "it was never added")
	case end == nil || m.has("P12/clean") && m.conf.PrevResult != nil && !gone:
		return nil
	}
	return ioError(alter("", func(ns *kernel.NS) error { return rtnl.DelLink(ns, end.Index) }))
}

func (m *model) gcInterfaces() *spec.Error {
	if _, e := m.delegate("GC"); e != nil {
		return e
	}
	return ioError(alter("", func(ns *kernel.NS) error {
		all, err := rtnl.Links(ns)
		if err != nil {
			return err
		}
		for _, l := range all {
			if len(m.stale([]string{l.Alias})) > 0 {
				err = errors.Join(err, rtnl.DelLink(ns, l.Index))
			}
		}
		return err
	}))
}

// writeState makes the model remember an owner, in a file.
func writeState(name string) error {
	if err := os.MkdirAll(stateDir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(stateDir, name), []byte("x"), 0o644)
}

// chained is the model that changes an interface: it remembers it in a file, sets its MAC and publishes a port.
func (m *model) chained() *spec.Error {
	file := filepath.Join(stateDir, m.owner())
	_, err := os.Stat(file)
	switch m.verb {
	case "ADD":
		return m.addChained()
	case "CHECK":
		if errors.Is(err, os.ErrNotExist) && !m.has("P15/untracked") {
			return failed(spec.CodeIO, "%s is gone", file)
		}
	case "DEL":
		return m.forget(m.owner())
	case "GC":
		for _, o := range m.stale(stateNames()) {
			if e := m.forget(o); e != nil {
				return e
			}
		}
	}
	return nil
}

func stateNames() (names []string) {
	files, _ := filepath.Glob(stateDir + "/*")
	for _, f := range files {
		names = append(names, filepath.Base(f))
	}
	return names
}

func (m *model) addChained() *spec.Error {
	if m.conf.PrevResult == nil {
		return failed(spec.CodeConfig, "prevResult is missing")
	}
	r, err := spec.DecodeResult(m.conf.PrevResult, m.version)
	if err != nil {
		return ioError(err)
	}
	l, err := link(m.netns, m.ifName)
	if err != nil || l == nil || m.has("P23/any") && l.Kind == "veth" {
		return failed(spec.CodeUnknown, "there is no interface %s", m.ifName)
	}
	if mac := m.mac(); mac != nil {
		err = alter(m.netns, func(ns *kernel.NS) error { return rtnl.SetLink(ns, m.ifName, rtnl.LinkChange{MAC: mac}) })
	}
	if err == nil {
		err = m.limit(r)
	}
	if err == nil {
		err = writeState(m.owner())
	}
	for _, p := range m.conf.RuntimeConfig.PortMappings {
		if m.has("K1/published") {
			p.ContainerPort++
		}
		table := m.hostEnd()
		err = errors.Join(err, exec.Command("nft", fmt.Sprintf("add table ip %s; add chain ip %s out { type nat hook output "+
			"priority -100; }; add rule ip %s out tcp dport %d dnat to %s:%d", table, table, table, p.HostPort,
			r.IPs[0].Address.Addr(), p.ContainerPort)).Run())
	}
	if err != nil {
		return ioError(err)
	}
	if m.has("P18/passed") {
		r.Routes = nil
	}
	return m.prints(r)
}

// forget removes what a chained model made for an owner.
func (m *model) forget(owner string) *spec.Error {
	part := strings.Split(owner, ",")
	as := &model{fault: m.fault, id: part[1], ifName: part[2]}
	as.conf.Name = part[0]
	exec.Command("nft", "delete table ip "+as.hostEnd()).Run()
	if err := os.Remove(filepath.Join(stateDir, owner)); !errors.Is(err, os.ErrNotExist) {
		return ioError(err)
	}
	return nil
}

// poolSize is how many addresses the IPAM model has.
const poolSize = 9

// addresses is the model that gives addresses: a file for each, with its owner.
func (m *model) addresses() *spec.Error {
	if err := os.MkdirAll(stateDir, 0o755); err != nil {
		return ioError(err)
	}
	dir, err := os.Open(stateDir)
	if err == nil {
		err = unix.Flock(int(dir.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		return ioError(err)
	}
	defer dir.Close()
	held := map[string]string{} // the owners of addresses
	for _, name := range stateNames() {
		b, _ := os.ReadFile(filepath.Join(stateDir, name))
		held[name] = string(b)
	}
	mine := func(address string) bool { return held[address] == m.owner() }
	switch m.verb {
	case "ADD":
		return m.allocate(held)
	case "CHECK":
		if !slices.ContainsFunc(stateNames(), mine) && !m.has("P15/reservation") {
			return failed(spec.CodeIO, "%s has no address", m.owner())
		}
	case "DEL":
		if _, err := os.Stat(m.netns); err == nil || !m.has("P13/address") {
			return m.release(held, []string{m.owner()})
		}
	case "GC":
		var owners []string
		for _, o := range held {
			owners = append(owners, o)
		}
		return m.release(held, m.stale(owners))
	case "STATUS":
		if len(held) == poolSize && !m.has("P21/exhausted") {
			return failed(spec.CodeUnavailable, "no address is free")
		}
	}
	return nil
}

func (m *model) allocate(held map[string]string) *spec.Error {
	for _, p := range m.wantedAddresses() {
		address := p.Addr().String()
		if _, taken := held[address]; taken && !m.has("P20/parallel") {
			continue
		}
		if err := os.WriteFile(filepath.Join(stateDir, address), []byte(m.owner()), 0o644); err != nil {
			return ioError(err)
		}
		r := &spec.Result{IPs: []spec.IP{{Address: p}}}
		if m.has("I4/abbreviated") {
			r.Interfaces = []spec.Interface{{Name: m.ifName}}
		}
		return m.prints(r)
	}
	return failed(spec.CodeTryAgain, "no address is free")
}

func (m *model) release(held map[string]string, owners []string) *spec.Error {
	for address, owner := range held {
		if slices.Contains(owners, owner) {
			if err := os.Remove(filepath.Join(stateDir, address)); err != nil {
				return ioError(err)
			}
		}
	}
	return nil
}
