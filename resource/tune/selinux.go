package tune

import (
	"context"

	"github.com/fairlead-cni/fairlead/internal/kernel/tap"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
)

// SELinux requires that SELinux is enabled on the host, because a key of the configuration contains a context.
type SELinux struct{ Key, Value string }

func (s SELinux) String() string { return "selinux for " + s.Key + " " + s.Value }

// Verify returns an error on a host without SELinux.
func (s SELinux) Verify(context.Context, *kernel.World) error {
	if tap.HasSELinux() {
		return nil
	}
	return spec.Errorf(spec.CodeUnsupported, "%s: %q: there is no SELinux on this host; remove the key", s.Key, s.Value)
}
