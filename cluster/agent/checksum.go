package agent

import "github.com/fairlead-cni/fairlead/kernel/ethtool"

// plainChecksums has the kernel compute the checksums of packets into a device, where the operator says so: some network
// cards corrupt those of packets in VXLAN.
func (a *Agent) plainChecksums(device string) error {
	if !a.NoTxChecksum {
		return nil
	}
	on, err := ethtool.TxChecksum(a.World.Host, device)
	if err != nil || !on {
		return err
	}
	a.Log.Info("turned the offload of checksums off", "device", device)
	return ethtool.SetTxChecksum(a.World.Host, device, false)
}
