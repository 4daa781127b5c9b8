package agent

import (
	"context"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/cluster/directory"
	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/resource/overlay"
)

// portFilter returns who may send to the VXLAN port: all other nodes for their prefixes, by any of their addresses. With
// WireGuard, none may.
func (a *Agent) portFilter(self directory.Node, nodes []directory.Node) overlay.PortFilter {
	f := overlay.PortFilter{Network: a.Network, ID: a.ID, Port: a.Port, Own: self.Endpoints}
	if a.ProbePort != 0 {
		f.Further = append(f.Further, a.ProbePort)
	}
	if a.Mode == WireGuard {
		f.Further = append(f.Further, a.tunnelPorts(nodes)...)
	}
	for _, n := range nodes {
		if n.Name == self.Name {
			continue
		}
		s := overlay.Sender{Endpoints: n.Endpoints}
		if a.Mode != WireGuard {
			s.Prefixes = n.Prefixes
		}
		f.Senders = append(f.Senders, s)
	}
	return f
}

// ensurePortFilter keeps others than nodes from the VXLAN port. It comes before the devices and the ways: a node gets
// a way when its packets are let in, and without the filter no node gets one.
func (a *Agent) ensurePortFilter(ctx context.Context, self directory.Node, nodes []directory.Node) error {
	f := a.portFilter(self, nodes)
	changed, err := f.Ensure(ctx, a.World)
	if changed {
		a.Log.Info("made as it should be", "what", f.String())
	}
	return err
}

// watchFilter has events when another program removes something of our tables of nf_tables, until ctx ends.
func (a *Agent) watchFilter(ctx context.Context, events chan<- struct{}, failed chan<- error) {
	w, err := nft.Watch(a.World.Host)
	if nft.Unsupported(err) {
		return // each comparison says so
	}
	if err != nil {
		failed <- err
		return
	}
	defer w.Close()
	ours := []string{"fairlead", a.portFilter(directory.Node{}, nil).Table()}
	if a.Fence != nil {
		ours = append(ours, a.Fence.Table())
	}
	for {
		changes, err := w.Next(ctx, 0)
		if err != nil {
			failed <- err
			return
		}
		if !slices.ContainsFunc(changes, func(c nft.Change) bool { return disturbs(c, ours) }) {
			continue
		}
		select {
		case events <- struct{}{}:
		default:
		}
	}
}

// mendFence makes what is cut off again what the grant says.
func (a *Agent) mendFence(ctx context.Context) error {
	if a.Fence == nil {
		return nil
	}
	changed, err := a.Fence.Mend(ctx)
	if changed {
		a.Log.Info("made as it should be", "what", "nft table inet "+a.Fence.Table())
	}
	return err
}

// disturbs reports whether a change may have removed something from one of some tables.
func disturbs(c nft.Change, tables []string) bool {
	if c == (nft.Change{}) {
		return true // some changes were lost
	}
	gone := slices.Contains([]uint16{unix.NFT_MSG_DELTABLE, unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_DELRULE,
		unix.NFT_MSG_DELSET}, c.Op)
	return gone && slices.Contains(tables, c.Table)
}
