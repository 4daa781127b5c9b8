package agent

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/fairlead-cni/fairlead/cluster/fence"
	"github.com/fairlead-cni/fairlead/internal/agentstatus"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
	"github.com/fairlead-cni/fairlead/resource/filter/masquerade"
	"github.com/fairlead-cni/fairlead/resource/overlay"
)

// Remove removes from this node what agents made for the network: the configuration first, so that the runtime attaches
// no more pods, then the ways to other nodes, and the files. Removing what is not there is success. Forwarding of packets
// stays on, because other programs may need it.
func (a *Agent) Remove(ctx context.Context) error {
	socket := agentstatus.Socket(a.Network)
	sole, err := Listen(socket) // beside an agent, which would make everything again, it is an error
	if err != nil {
		return err
	}
	device, err := a.LockDevice() // which may be the agent of another network
	if err != nil {
		return errors.Join(err, sole.Close())
	}
	defer device.Close()
	errs := []error{a.Conflist.remove()}
	_, err = overlay.Sync(ctx, a.World, nil, nil) // the routes by any link
	errs = append(errs, err, a.dropDevices(ctx, nil))
	errs = append(errs, masquerade.Nodes{Network: a.Network}.Remove(ctx, a.World))
	errs = append(errs, overlay.PortFilter{Network: a.Network, ID: a.ID, Port: a.Port}.Remove(ctx, a.World)) // when nothing has the port any more
	errs = append(errs, (&fence.Fence{Network: a.Network, World: a.World}).Remove(ctx), sole.Close())
	for _, path := range append(a.deviceLocks(), grant.Path(a.Network), socket, socket+lockSuffix, a.Saved.Path, a.Tunnel.KeyFile) {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
