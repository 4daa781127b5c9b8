package agent

import (
	"fmt"

	"github.com/fairlead-cni/fairlead/internal/kernel/ethtool"
)

// Checksums says who computes the checksums of packets into VXLAN: the kernel, or the network card, which some do wrongly.
type Checksums string

// The ways. The zero value is Offloaded.
const (
	Offloaded  Checksums = "on"
	Computed   Checksums = "off"  // by the kernel
	AutoSummed Checksums = "auto" // by the kernel if datagrams arrive only so
)

// ParseChecksums returns the way of a name.
func ParseChecksums(name string) (Checksums, error) {
	switch c := Checksums(name); c {
	case Offloaded, Computed, AutoSummed:
		return c, nil
	}
	return "", fmt.Errorf("%q: want on, off or auto", name)
}

// A suspicion is what is known of the offload of checksums.
type suspicion int

// Datagrams to one node do not arrive, and echoes do: then it is Tried without offload. The next test of that node says
// whether that was the cause.
const (
	unsuspected suspicion = iota
	tried
	guilty
	innocent
)

// setChecksums has the kernel compute the checksums of packets into a device, or not.
func (a *Agent) setChecksums(device string) error {
	sums := a.paths.checksums()
	offload := a.Checksums != Computed
	if a.Checksums == AutoSummed {
		if sums == unsuspected {
			return nil // an agent before this one may have turned it off
		}
		offload = sums == innocent
	}
	on, err := ethtool.TxChecksum(a.World.Host, device)
	if err != nil || on == offload {
		return err
	}
	a.paths.turn()
	a.Log.Info("set the offload of checksums", "device", device, "on", offload)
	return ethtool.SetTxChecksum(a.World.Host, device, offload)
}
