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
	"github.com/fairlead-cni/fairlead/spec"
)

// Seek returns the attachments of the one container that arg means. arg is a name, a PID, an address, a MAC, a port
// of the host or an interface of the host. If several containers match, the error names all of them.
func (d *Doctor) Seek(arg string) ([]attach.Cached, error) {
	var ids, lines []string // of the attachments that arg may mean
	add := func(as string, is func(attach.Cached) bool) {
		for _, c := range d.All {
			if is(c) {
				ids, lines = append(ids, c.ContainerID), append(lines, attached.ShortOwner(c)+", by "+as)
			}
		}
	}
	named := attached.Find(arg, d.All)
	add("name or ID", func(c attach.Cached) bool { return attached.ByOwner(named, c.Owner()) != nil })
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
		add("address "+arg, func(c attach.Cached) bool { return attached.HasAddress(c, a.Unmap()) })
	}
	if mac, err := net.ParseMAC(arg); err == nil {
		add("MAC "+arg, hasInterface(func(i spec.Interface) bool { return strings.EqualFold(i.MAC, mac.String()) }))
	}
	isHostLink := func(i spec.Interface) bool { return i.Sandbox == "" && i.Name == arg }
	add("interface "+arg+" of the host", hasInterface(isHostLink))
	switch {
	case len(ids) == 0:
		return nil, attached.NotAttached(arg, d.All)
	case slices.ContainsFunc(ids, func(id string) bool { return id != ids[0] }):
		return nil, app.Fail(app.ExitUsage,
			"Name one of them as NET/ID. A port of the host may be written with a colon, as :8080.",
			"%q may mean several containers:\n%s", arg, strings.Join(lines, "\n"))
	}
	all := slices.DeleteFunc(slices.Clone(d.All), func(c attach.Cached) bool { return c.ContainerID != ids[0] })
	isLoopback := func(c attach.Cached) bool { return c.Network == attached.LoopbackNetwork }
	if others := slices.DeleteFunc(slices.Clone(all), isLoopback); len(others) > 0 {
		return others, nil
	}
	return all, nil
}

// hasInterface returns a function that reports whether the result of ADD has such an interface.
func hasInterface(is func(spec.Interface) bool) func(attach.Cached) bool {
	return func(c attach.Cached) bool { return c.Result != nil && slices.ContainsFunc(c.Result.Interfaces, is) }
}
