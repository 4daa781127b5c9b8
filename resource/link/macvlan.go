package link

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"strconv"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// A Macvlan is a link of the container on a link of the host, with its own MAC address. With Tap, it is a macvtap: a
// program reads and writes its packets through the file /dev/tapN, where N is the link's index.
type Macvlan struct {
	Stacked
	Mode       string // of MacvlanModes; empty: bridge
	BCQueueLen uint32 // broadcast packets that may wait; zero: the kernel's
	Tap        bool
}

// MacvlanModes maps names of modes to the kernel's numbers. The mode decides how macvlans on one master reach each
// other.
func MacvlanModes() map[string]uint32 {
	return map[string]uint32{"private": 1, "vepa": 2, "bridge": 4, "passthru": 8}
}

func (m Macvlan) kind() string {
	if m.Tap {
		return "macvtap"
	}
	return "macvlan"
}

func (m Macvlan) mode() string { return cmp.Or(m.Mode, "bridge") }

func (m Macvlan) String() string {
	return m.words(m.kind(), "mode "+m.mode(), resource.Opt("bcqueuelen", m.BCQueueLen))
}

// tapFile is the file of the macvtap that has an index.
func tapFile(index int) string { return "/dev/tap" + strconv.Itoa(index) }

// tapIndex is an index for a macvtap, which its file is called after. The files of all namespaces are in one directory,
// and the kernel makes none, without a word, where there is one of that name: so it is one that nothing is called
// after.
func (m Macvlan) tapIndex() int {
	i := m.spareIndex()
	for {
		if _, err := os.Lstat(tapFile(i)); err != nil {
			return i
		}
		i = 1<<30 | (i+1)&(1<<30-1)
	}
}

// Traits implements resource.Describer.
func (m Macvlan) Traits() resource.Traits {
	is := m.traits(m.kind(), m.Mode, m.final)
	is.Tell = m.tell
	return is
}

func (m Macvlan) final(f spec.Interface) plan.Resource {
	m.show(f)
	return m
}

// tell says a macvtap's socketPath.
func (m Macvlan) tell(w *kernel.World, res *spec.Result) error {
	f := resource.InContainer(res, m.Name)
	if !m.Tap || f == nil {
		return nil
	}
	_, index, err := resource.Container.Index(w, m.Name)
	f.SocketPath = tapFile(index)
	return err
}

// Ensure implements plan.Resource.
func (m Macvlan) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	s := m.Stacked
	if m.Tap {
		s.index = m.tapIndex()
	}
	// A passthru's address is the master's own: the kernel ignores another in the creating message, and takes it
	// afterwards. It gives the master its own back when the link goes.
	passthru := m.mode() == "passthru" && s.MAC != ""
	if passthru {
		s.MAC = ""
	}
	on, err := m.Master.Where.Namespace(w)
	if err != nil {
		return false, err
	}
	err = withOwnMAC(ctx, on, m.Owner, s.MAC, func(mac string) error {
		s.MAC = mac
		return s.make(w, m.kind(), rtnl.MacvlanData(MacvlanModes()[m.mode()], m.BCQueueLen))
	})
	if errors.Is(err, unix.EINVAL) {
		err = m.crowded(w, err)
	}
	if err != nil {
		return false, err
	}
	if passthru {
		mac, err := net.ParseMAC(m.MAC)
		if err == nil {
			err = rtnl.SetLink(w.Container, m.Name, rtnl.LinkChange{MAC: mac})
		}
		if err != nil {
			return false, errors.Join(err, m.Remove(ctx, w))
		}
	}
	if m.BCQueueLen != 0 {
		if l, err := rtnl.LinkByName(w.Container, m.Name); err == nil && l.Data.BCQueueLen == 0 {
			slog.Warn("this kernel has no bcqueuelen, which came with Linux 5.11", "link", m.Name)
		}
	}
	return true, nil
}

// Verify implements plan.Resource.
func (m Macvlan) Verify(ctx context.Context, w *kernel.World) error {
	l, d := m.verify(w, m.kind())
	if l == nil {
		return d.Err()
	}
	d.Want("mode", m.mode(), wordOf(l.Data.Mode, MacvlanModes()))
	if m.BCQueueLen != 0 && l.Data.BCQueueLen != 0 {
		d.Want("bcqueuelen", m.BCQueueLen, l.Data.BCQueueLen)
	}
	return d.Err()
}

// Remove implements plan.Remover.
func (m Macvlan) Remove(ctx context.Context, w *kernel.World) error {
	return removeOwn(w, m.Owner, m.Name, m.kind())
}
