package addr

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"strconv"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// An Addr is an address of a link.
type Addr struct {
	Where         resource.Where
	Link          string
	Prefix        netip.Prefix // the address with its subnet's length
	NoDAD         bool         // IPv6: usable at once, without asking whether another host has it
	NoPrefixRoute bool         // do not make the route to the subnet

	// Subnet is that of the container whose gateway the address is to be; the host has it on any number of links.
	// Invalid: it is no gateway.
	Subnet netip.Prefix
}

func (a Addr) String() string {
	return resource.Line("addr", a.Where.String()+a.Link, a.Prefix.String(), resource.Flag("nodad", a.NoDAD),
		resource.Flag("noprefixroute", a.NoPrefixRoute))
}

// Traits implements resource.Describer.
func (a Addr) Traits() resource.Traits {
	is := resource.Traits{On: resource.Iface{Where: a.Where, Name: a.Link}}
	if a.Where == resource.Host {
		is.Fix = a.Ensure
	}
	if a.Subnet.IsValid() {
		is.Free, is.Overlaps = a.free, a.overlaps
	}
	return is
}

// Ensure implements plan.Resource.
func (a Addr) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	ns, index, err := a.Where.Index(w, a.Link)
	if err != nil {
		return false, err
	}
	if a.Subnet.IsValid() && !OfHost(w, a.Prefix.Addr()) {
		if err := errors.Join(a.free(w), a.overlaps(w)); err != nil {
			return false, err
		}
	}
	err = rtnl.AddAddr(ns, index, rtnl.Addr{Prefix: a.Prefix, NoDAD: a.NoDAD && a.Prefix.Addr().Is6(),
		NoPrefixRoute: a.NoPrefixRoute})
	if errors.Is(err, fs.ErrExist) {
		return false, a.Verify(ctx, w) // IPv6 has an address once, whatever the length
	}
	return err == nil, err // a container's is waited for when it is announced; the host is sure of its own
}

// free is Free of the Traits of a gateway's address.
func (a Addr) free(w *kernel.World) error { return spareRouters(w, a.Link, a.Prefix) }

// overlaps is Overlaps of the Traits of a gateway's address.
func (a Addr) overlaps(w *kernel.World) error {
	return warnOfOverlap(w, a.Link, netip.PrefixFrom(a.Prefix.Addr(), a.Subnet.Bits()))
}

// Verify implements plan.Resource. An address in duplicate address detection is no difference. An address that
// another host on the link has is one.
func (a Addr) Verify(ctx context.Context, w *kernel.World) error {
	ns, index, err := a.Where.Index(w, a.Link)
	if err != nil {
		return err
	}
	list, err := rtnl.Addrs(ns, index)
	if err != nil {
		return err
	}
	for _, have := range list {
		if have.Prefix.Addr() != a.Prefix.Addr() {
			continue
		}
		// IPv4 may have one address with several lengths; IPv6 has it once.
		if have.Prefix != a.Prefix && a.Prefix.Addr().Is4() {
			err = spec.Differs("prefix length", strconv.Itoa(a.Prefix.Bits()), strconv.Itoa(have.Prefix.Bits()))
			continue
		}
		var d resource.Drift
		d.Want("prefix length", a.Prefix.Bits(), have.Prefix.Bits())
		d.WantIfSet("noprefixroute", a.NoPrefixRoute, have.NoPrefixRoute)
		if have.DADFailed {
			d.Add(spec.Difference{Field: "dadfailed", Text: "another machine on the link has it (dadfailed)"})
		}
		return d.Err()
	}
	if err == nil {
		err = spec.Missing("")
	}
	return err
}
