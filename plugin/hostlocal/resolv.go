package hostlocal

import (
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/spec"
)

// dns is what the resolv.conf says that the configuration names. A FIFO is not waited for, and a device not
// read to its end.
func (l *local) dns() (spec.DNS, error) {
	if l.resolvConf == "" {
		return spec.DNS{}, nil
	}
	bad := func(err error) (spec.DNS, error) {
		return spec.DNS{}, spec.Errorf(spec.CodeConfig, "ipam.resolvConf: %w", err)
	}
	f, err := os.OpenFile(l.resolvConf, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return bad(err)
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil {
		return bad(err)
	} else if !st.Mode().IsRegular() {
		return bad(fmt.Errorf("%s: is not a regular file", l.resolvConf))
	}
	const most = 1 << 20
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	switch {
	case err != nil:
		return bad(err)
	case len(text) > most:
		return bad(fmt.Errorf("%s: has more than %d bytes", l.resolvConf, most))
	}
	return ipam.ParseResolvConf(string(text)), nil
}
