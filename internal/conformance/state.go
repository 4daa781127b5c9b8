package conformance

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

// look calls a function with the namespace at path; the empty path is the host.
func look[T any](path string, fn func(*kernel.NS) (T, error)) (got T, err error) {
	ns, err := kernel.Open(path)
	if err != nil {
		return got, err
	}
	defer ns.Close()
	return fn(ns)
}

// state is what there is on the host and in a container, a line for each link, address, route, rule of the packet
// filter and file of state. Link-local addresses do not count: the kernel makes them.
func (t *trial) state(c *container) []string {
	lines := slices.Concat(ofNamespace("host ", ""), t.rules(), must(stateFiles()))
	if c != nil {
		lines = append(lines, ofNamespace("container ", c.netns)...)
	}
	slices.Sort(lines)
	return lines
}

// ofNamespace are the links, addresses and routes of a namespace, each with a word before it.
func ofNamespace(word, path string) (lines []string) {
	for _, line := range must(look(path, links)) {
		lines = append(lines, word+line)
	}
	return lines
}

func links(ns *kernel.NS) (lines []string, err error) {
	all, err := rtnl.Links(ns)
	if err != nil {
		return nil, err
	}
	names := map[int]string{}
	for _, l := range all {
		names[l.Index] = l.Name
	}
	for _, l := range all {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("link %s %s %s", l.Name, l.Kind, names[l.Master])))
	}
	addrs, err := rtnl.AllAddrs(ns)
	if err != nil {
		return nil, err
	}
	for _, a := range addrs {
		if !a.Prefix.Addr().IsLinkLocalUnicast() && !a.Prefix.Addr().IsLoopback() {
			lines = append(lines, fmt.Sprintf("address %s %s", names[a.Link], a.Prefix))
		}
	}
	routes, err := rtnl.Routes(ns, rtnl.RouteFilter{Family: rtnl.IPv4, Table: rtnl.MainTable})
	for _, r := range routes {
		lines = append(lines, fmt.Sprintf("route %s via %s dev %s metric %d", r.Dst, r.Via, names[r.Link], r.Priority))
	}
	return lines, err
}

// rules are those of the packet filter, without their counters; none where nft(8) is not installed.
func (t *trial) rules() (lines []string) {
	out, err := exec.CommandContext(t.ctx, "nft", "list", "ruleset").Output()
	if err != nil {
		return nil
	}
	counters := regexp.MustCompile(`packets \d+ bytes \d+|expires \S+`)
	table := ""
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(counters.ReplaceAllString(line, ""))
		if strings.HasPrefix(line, "table ") {
			table = strings.TrimSuffix(line, " {")
		}
		if strings.Trim(line, "}") != "" {
			lines = append(lines, table+": "+line)
		}
	}
	return lines
}

// stateFiles are the files of the usual directories of state. An empty one, such as a lock, holds nothing.
func stateFiles() (lines []string, err error) {
	for _, dir := range []string{"/var/lib/cni", "/run/cni"} {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return nil
			}
			if info, err := e.Info(); err == nil && info.Size() > 0 {
				lines = append(lines, "file "+path)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return lines, nil
}

// unchanged compares the state with an earlier one. It waits for what the kernel removes with a namespace.
func (t *trial) unchanged(what string, before []string, c *container) {
	var left error
	groups := []uint{rtnl.LinkEvents, rtnl.IPv4AddrEvents, rtnl.IPv4RouteEvents}
	err := alter("", func(ns *kernel.NS) error {
		return rtnl.Await(ns, t.ctx, answerLimit, groups, func() (bool, error) {
			left = unchanged(what, before, t.state(c))
			return left == nil, nil
		})
	})
	if errors.Is(err, context.DeadlineExceeded) {
		err = left
	}
	require(err)
}
