package doctor

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
)

// candidate is a container that the argument may mean, and how it matches.
type candidate struct {
	attach.Cached
	as string
}

// Seek returns the attachments of the one container that arg means. arg is a name, a PID, an address, a MAC, a port
// of the host or an interface of the host. If several containers match, the error names all of them.
func (d *Doctor) Seek(arg string) ([]attach.Cached, error) {
	var found []candidate
	add := func(as string, is func(attach.Cached) bool) {
		for _, c := range d.All {
			if is(c) {
				found = append(found, candidate{c, as})
			}
		}
	}
	for _, c := range attached.Find(arg, d.All) {
		found = append(found, candidate{c, "name or ID"})
	}
	number, port := strings.CutPrefix(arg, ":")
	if n, err := strconv.Atoi(number); err == nil && n > 0 {
		ns := fmt.Sprintf("/proc/%d/ns/net", n)
		if _, err := os.Stat(ns); err == nil && !port {
			add(fmt.Sprintf("PID %d", n), func(c attach.Cached) bool {
				return c.Netns != "" && attached.SamePath(ns, c.Netns)
			})
		}
		add(fmt.Sprintf("port %d of the host", n), func(c attach.Cached) bool {
			return slices.ContainsFunc(attached.Mappings(c.Capabilities),
				func(m attached.PortMapping) bool { return m.HostPort == n })
		})
	}
	if a, err := netip.ParseAddr(arg); err == nil {
		add("address "+arg, func(c attach.Cached) bool {
			return slices.ContainsFunc(attached.OwnAddresses(c),
				func(p netip.Prefix) bool { return p.Addr() == a.Unmap() })
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

// hasInterface reports whether the result of ADD has an interface that matches. is gets name and MAC of host
// interfaces, and only the MAC of the container's.
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

// only returns all attachments of the container that the candidates belong to. It fails if they are several
// containers.
func (d *Doctor) only(arg string, found []candidate) (all []attach.Cached, err error) {
	if len(found) == 0 {
		return nil, attached.NotAttached(arg, d.All)
	}
	var lines []string
	for _, f := range found {
		line := fmt.Sprintf("%s, by %s", attached.ShortOwner(f.Cached), f.as)
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	other := func(f candidate) bool { return f.ContainerID != found[0].ContainerID }
	if slices.ContainsFunc(found, other) {
		return nil, app.Fail(app.ExitUsage,
			"Name one of them as NET/ID. A port of the host may be written with a colon, as :8080.",
			"%q may mean several containers:\n%s", arg, strings.Join(lines, "\n"))
	}
	var loopback []attach.Cached
	for _, c := range d.All {
		switch {
		case c.ContainerID != found[0].ContainerID:
		case c.Network == attached.LoopbackNetwork:
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
