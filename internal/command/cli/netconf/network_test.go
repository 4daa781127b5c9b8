package netconf

import (
	"testing"

	"github.com/fairlead-cni/fairlead/spec"
)

// The built-in network is a valid one, with and without IPv6.
func TestDefaultList(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		l, err := spec.ParseList(DefaultList(ipv6))
		if err != nil || l.Name != DefaultNetwork || len(l.Plugins) != 3 {
			t.Errorf("IPv6 %v: %v, %v", ipv6, l, err)
		}
	}
}
