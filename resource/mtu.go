package resource

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

// An MTU is the maximum transmission unit of a link in bytes. Zero means no opinion.
type MTU int

// AutoMTU means the smallest MTU of the host's default routes. It is resolved when the resource is ensured. So a plan
// stays a pure function, and a later change of an uplink is no drift.
const AutoMTU MTU = -1

// AutoLess returns AutoMTU minus the size of the headers, in bytes, that a tunnel adds to each packet. Without a
// default route, it starts from 1500.
func AutoLess(headers int) MTU { return AutoMTU - MTU(headers) }

func (m MTU) String() string {
	switch {
	case m == AutoMTU:
		return "auto"
	case m < AutoMTU:
		return "auto less " + strconv.Itoa(int(AutoMTU-m))
	}
	return strconv.Itoa(int(m))
}

// UnmarshalJSON accepts a number of bytes, or "auto".
func (m *MTU) UnmarshalJSON(b []byte) error {
	switch s := string(b); s {
	case `""`, "null":
		return nil
	case `"auto"`:
		*m = AutoMTU
		return nil
	default:
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 { // what is below zero here has a meaning of its own
			return errors.New(`want a number of bytes, or "auto"`)
		}
		*m = MTU(n)
		return nil
	}
}

// Resolve returns the number for the kernel, or 0 for the kernel's default.
func (m MTU) Resolve(w *kernel.World) (int, error) {
	if m >= 0 {
		return int(m), nil
	}
	mtu, err := rtnl.EgressMTU(w.Host)
	if err != nil {
		return 0, fmt.Errorf("mtu of the way out: %w", err)
	}
	if mtu == 0 && m < AutoMTU {
		mtu = 1500
	}
	return mtu - int(AutoMTU-m), nil
}
