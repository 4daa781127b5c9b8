package cli

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/kernel"
)

// maxPorts bounds how many ports of a range are looked at.
const maxPorts = 64

// mappings are the ports that a container with these capability arguments publishes, a mapping for each port.
func mappings(capabilities map[string]any) (all []portMapping) {
	raw, err := json.Marshal(capabilities["portMappings"])
	if err != nil {
		return nil
	}
	var given []portMapping
	if json.Unmarshal(raw, &given) != nil {
		return nil
	}
	for _, m := range given {
		if m.Protocol == "" {
			m.Protocol = "tcp"
		}
		for i := range min(max(m.HostPort, m.HostPortEnd)-m.HostPort+1, maxPorts) {
			one := m
			one.HostPort, one.ContainerPort, one.HostPortEnd = m.HostPort+i, m.ContainerPort+i, 0
			all = append(all, one)
		}
	}
	return all
}

// ofPorts says of published ports which processes of the host listen on them, too.
func (d *doctor) ofPorts() {
	for _, c := range d.mine {
		if isGone(c) || c.Result == nil {
			continue
		}
		for _, m := range mappings(c.Capabilities) {
			d.taken(c, m)
		}
	}
}

// taken says whether a process of the host listens where a port is published.
func (d *doctor) taken(c attach.Cached, m portMapping) {
	listeners, err := d.host.Listeners(m.number(), uint16(m.HostPort))
	if err != nil {
		d.blind("which ports of the host have a listener: %v", err)
		return
	}
	host, given := netip.ParseAddr(m.HostIP)
	for _, l := range listeners {
		if given != nil || host.IsUnspecified() || l.Takes(host) {
			port := strconv.Itoa(m.HostPort)
			d.add("published-port-taken", "port "+port+"/"+m.Protocol,
				fmt.Sprintf("%s listens on %v", holder(l.Inode), l.At), who(c, m.String()), "PORT", port)
		}
	}
}

// served says whether a server listens in the container where a published port leads to.
func (d *doctor) served(ns *kernel.NS, c attach.Cached, m portMapping) {
	listeners, err := ns.Listeners(m.number(), uint16(m.ContainerPort))
	to := target4(c, m)
	if err != nil || !to.IsValid() {
		return // an SCTP that the kernel does not tell of
	}
	where := fmt.Sprintf("port %d/%s", m.ContainerPort, m.Protocol)
	switch {
	case len(listeners) == 0:
		d.add("port-nobody-listens", where, "", who(c, "publishes "+m.String()), "NETNS", c.Netns)
	case !slices.ContainsFunc(listeners, func(l kernel.Listener) bool { return l.Takes(to) }):
		var at []string
		for _, l := range listeners {
			at = append(at, l.At.String())
		}
		d.add("port-loopback-only", where, fmt.Sprintf("the server listens on %s, and what comes is for %v",
			strings.Join(at, ", "), to), who(c, "publishes "+m.String()), "NETNS", c.Netns)
	}
}

// holder is the program that has a socket, and its PID; whoever may not see that is told so.
func holder(inode uint32) string {
	want := fmt.Sprintf("socket:[%d]", inode)
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && to == want {
			pid := strings.Split(fd, "/")[2]
			name, _ := os.ReadFile("/proc/" + pid + "/comm")
			return fmt.Sprintf("process %s (PID %s)", strings.TrimSpace(string(name)), pid)
		}
	}
	return "a process that cannot be seen"
}
