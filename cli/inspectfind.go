package cli

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
)

// A candidate is a container that a user may mean, and how.
type candidate struct {
	attach.Cached
	as string
}

// seek finds the one container that a user means by a name, a PID, an address, a MAC, a port of the host or an
// interface of the host, and returns its attachments. Of several it names all.
func (d *doctor) seek(arg string) ([]attach.Cached, error) {
	var found []candidate
	add := func(as string, is func(attach.Cached) bool) {
		for _, c := range d.all {
			if is(c) {
				found = append(found, candidate{c, as})
			}
		}
	}
	for _, c := range find(arg, d.all) {
		found = append(found, candidate{c, "name or ID"})
	}
	number, port := strings.CutPrefix(arg, ":")
	if n, err := strconv.Atoi(number); err == nil && n > 0 {
		ns := fmt.Sprintf("/proc/%d/ns/net", n)
		if _, err := os.Stat(ns); err == nil && !port {
			add(fmt.Sprintf("PID %d", n), func(c attach.Cached) bool { return c.Netns != "" && samePath(ns, c.Netns) })
		}
		add(fmt.Sprintf("port %d of the host", n), func(c attach.Cached) bool {
			return slices.ContainsFunc(mappings(c.Capabilities), func(m portMapping) bool { return m.HostPort == n })
		})
	}
	if a, err := netip.ParseAddr(arg); err == nil {
		add("address "+arg, func(c attach.Cached) bool {
			return slices.ContainsFunc(describe(c).Addresses, func(p netip.Prefix) bool { return p.Addr() == a.Unmap() })
		})
	}
	if mac, err := net.ParseMAC(arg); err == nil {
		add("MAC "+arg, func(c attach.Cached) bool {
			return hasInterface(c, func(name, at string) bool { return strings.EqualFold(at, mac.String()) })
		})
	}
	add("interface "+arg+" of the host", func(c attach.Cached) bool {
		return hasInterface(c, func(name, _ string) bool { return name == arg })
	})
	return d.only(arg, found)
}

// hasInterface reports whether ADD answered with such an interface: one of the host by its name and MAC, the
// container's by its MAC.
func hasInterface(c attach.Cached, is func(name, mac string) bool) bool {
	if c.Result == nil {
		return false
	}
	for _, i := range c.Result.Interfaces {
		if i.Sandbox == "" && is(i.Name, i.MAC) || i.Sandbox != "" && i.Name == c.IfName && is("", i.MAC) {
			return true
		}
	}
	return false
}

// only are all attachments of the container that the candidates are, if it is one.
func (d *doctor) only(arg string, found []candidate) (all []attach.Cached, err error) {
	if len(found) == 0 {
		return nil, notAttached(arg)
	}
	var lines []string
	for _, f := range found {
		line := fmt.Sprintf("%s, by %s", shortOwner(f.Cached), f.as)
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	other := func(f candidate) bool { return f.ContainerID != found[0].ContainerID }
	if slices.ContainsFunc(found, other) {
		return nil, fail(exitUsage, "Name one of them as NET/ID. A port of the host may be written with a colon, as :8080.",
			"%q may mean several containers:\n%s", arg, strings.Join(lines, "\n"))
	}
	var loopback []attach.Cached
	for _, c := range d.all {
		switch {
		case c.ContainerID != found[0].ContainerID:
		case c.Network == loopbackNetwork:
			loopback = append(loopback, c)
		default:
			all = append(all, c)
		}
	}
	if len(all) == 0 {
		all = loopback
	}
	return all, nil
}
