package demo

import (
	"fmt"
	"net"
	"path/filepath"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/run"
	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel"
)

// hostCounts counts what attachments could leave on a host.
type hostCounts struct {
	links, elements, leases, attachments, netns, runs int

	names []string // names of the links
}

// count counts. It leaves out bridges: the plugins keep these for the next container.
func count() (c hostCounts, err error) {
	links, err := net.Interfaces()
	if err != nil {
		return c, fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		if l.Name != netconf.DefaultBridge && l.Name != outsideBridge {
			c.names = append(c.names, l.Name)
		}
	}
	c.links = len(c.names)
	c.netns = entries(attached.NetnsDir, "*")
	c.attachments = entries(filepath.Join(attach.DefaultCacheDir, "results"), "*")
	c.runs = entries(run.RunDir(), "*")
	leases, _ := filepath.Glob(filepath.Join(attach.DefaultCacheDir, "networks/*/*"))
	for _, l := range leases {
		if net.ParseIP(filepath.Base(l)) != nil {
			c.leases++
		}
	}
	host, err := kernel.Open("")
	if err != nil {
		return c, err
	}
	defer host.Close()
	conn, err := nft.Open(host)
	if err == nil {
		c.elements, err = conn.Elements()
	}
	return c, err
}

// entries returns how many files of a directory match.
func entries(dir, pattern string) int {
	found, _ := filepath.Glob(filepath.Join(dir, pattern))
	return len(found)
}
