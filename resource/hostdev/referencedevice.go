package hostdev

import (
	"errors"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// byReference is the record that a device would have that the reference's plugin moved: it keeps the name in the alias,
// and nothing else. It is in the container, or where that is gone on the host, under the name that it had in there. In
// is nil unless the configuration means that device, and it is known that no container has it.
//
// Root in the container can make such a link, too. So it is none where a container is known to have the
// device or the host has it, and a virtual one only where a result shows that the container got one, and its other end
// is not in there, too.
func (h HostDevice) byReference(w *kernel.World) (r DeviceRecord, in *kernel.NS, l *rtnl.Link, err error) {
	in = w.Container
	if in == nil {
		in = w.Host
	}
	if l, err = rtnl.LinkByName(in, h.Name); err != nil {
		return r, nil, nil, resource.ExceptNoLink(err)
	}
	if spec.ValidIfName(l.Alias) != nil || in == w.Host && (l.Kind != "" || l.Alias == l.Name) || rooted(l.Kind) &&
		!l.PeerAway {
		return r, nil, nil, nil
	}
	r = DeviceRecord{Owner: h.Owner, Dir: containerDir(l), deviceState: deviceState{
		Kind: l.Kind, Link: l.Alias, MAC: l.MAC.String(), MTU: l.MTU, TxQLen: l.TxQLen, Promisc: l.Promisc,
		AllMulti: l.AllMulti, AltNames: l.AltNames()}}
	if h.Device.value() == "" || !h.Device.is(r) || l.Kind != "" && !h.Attached {
		return r, nil, nil, nil
	}
	if at, err := h.Device.find(w); err != nil && !errors.Is(err, rtnl.ErrNoLink) || err == nil &&
		(in != w.Host || at.Index != l.Index) {
		return r, nil, nil, err
	}
	if records, err := DeviceRecords(w); err != nil || slices.ContainsFunc(records, h.Device.is) {
		return r, nil, nil, err
	}
	return r, in, l, nil
}
