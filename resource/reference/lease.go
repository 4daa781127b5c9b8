package reference

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/plainfile"
	"github.com/fairlead-cni/fairlead/spec"
)

// leases is where host-local has a file for each address of a network, unless it was told otherwise.
const leases = "/var/lib/cni/networks"

// lease says to whom host-local has given an address.
func lease(network string, a netip.Addr) (containerID, ifName string, ok bool) {
	dir := filepath.Join(leases, network)
	b, err := plainfile.Read(filepath.Join(dir, a.String()), plainfile.MaxSize)
	if os.IsNotExist(err) && a.Is6() { // as the reference writes it elsewhere than on Linux
		b, err = plainfile.Read(filepath.Join(dir, strings.ReplaceAll(a.String(), ":", "_")), plainfile.MaxSize)
	}
	f := append(strings.Fields(string(b)), "", "")
	return f[0], f[1], err == nil && f[0] != ""
}

// leasedTo are the addresses that host-local has given to o. It reads every lease of the network, and is for
// attachments of which nothing else is known any more.
func leasedTo(o spec.Owner) (addrs []netip.Addr) {
	entries, err := os.ReadDir(filepath.Join(leases, o.Network))
	if err != nil {
		return nil
	}
	for _, e := range entries {
		a, err := netip.ParseAddr(strings.ReplaceAll(e.Name(), "_", ":"))
		if err != nil {
			continue
		}
		if id, ifName, ok := lease(o.Network, a); ok && id == o.ContainerID && (ifName == "" || ifName == o.IfName) {
			addrs = append(addrs, a)
		}
	}
	return addrs
}
