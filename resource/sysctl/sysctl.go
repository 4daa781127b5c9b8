package sysctl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/procsys"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// Traits implements resource.Describer. Repair sets the sysctls of the host.
func (s Sysctl) Traits() (t resource.Traits) {
	if s.Where == resource.Host {
		t.Fix = s.Ensure
	}
	return t
}

// A Sysctl is a setting below /proc/sys. It is written only if it differs, because many nodes have a read-only /proc.
// In a container, only settings below net are allowed: the others do not belong to its network namespace.
type Sysctl struct {
	Where resource.Where
	Key   string // net.ipv4.ip_forward or net/ipv4/ip_forward; the first separator decides, as sysctl(8) has it
	Value string
}

func (s Sysctl) String() string { return "sysctl " + s.Where.String() + s.Key + "=" + s.Value }

// Ensure implements plan.Resource.
func (s Sysctl) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	ns, err := s.ns(w)
	if err != nil {
		return false, err
	}
	return procsys.Set(ns, procsys.Setting{Key: s.Key, Value: s.Value})
}

// Verify implements plan.Resource.
func (s Sysctl) Verify(ctx context.Context, w *kernel.World) error {
	ns, err := s.ns(w)
	if err != nil {
		return err
	}
	v, err := procsys.Get(ns, s.Key)
	if err != nil {
		return err
	}
	if !procsys.SameValue(v, s.Value) {
		return spec.Differs(s.Key, s.Value, v)
	}
	return nil
}

func (s Sysctl) ns(w *kernel.World) (*kernel.NS, error) {
	path, err := procsys.Path(s.Key)
	if err != nil {
		return nil, err
	}
	if s.Where == resource.Container && !strings.HasPrefix(path, "/proc/sys/net/") {
		return nil, fmt.Errorf("sysctl %s is not of a network namespace, and setting it would change the host's", s.Key)
	}
	return s.Where.Namespace(w)
}

// An EnableIPv6 allows IPv6 addresses on a link of the container and keeps them when the link goes down.
type EnableIPv6 struct {
	Link  string
	NoDAD bool // addresses are usable at once, without asking whether another host has them
	DAD   bool // they are asked for even where the host's default is to ask no times
}

func (e EnableIPv6) String() string {
	return resource.Line("ipv6 on cont/"+e.Link, resource.Flag("nodad", e.NoDAD), resource.Flag("dad", e.DAD))
}

// Traits implements resource.Describer.
func (e EnableIPv6) Traits() resource.Traits {
	return resource.Traits{On: resource.Iface{Name: e.Link}}
}

// never is the setting that turns duplicate address detection off, if it exists.
func (e EnableIPv6) never(ns *kernel.NS) (s procsys.Setting, is bool) {
	s = procsys.Setting{Key: "net/ipv6/conf/" + e.Link + "/dad_transmits", Value: "1"}
	if !e.DAD {
		return s, false
	}
	v, err := procsys.Get(ns, s.Key)
	return s, err == nil && v == "0"
}

func (e EnableIPv6) settings() []procsys.Setting {
	conf := "net/ipv6/conf/" + e.Link + "/"
	list := []procsys.Setting{
		{Key: "net/ipv6/conf/lo/disable_ipv6", Value: "0"},
		{Key: conf + "disable_ipv6", Value: "0"},
		{Key: conf + "keep_addr_on_down", Value: "1", Optional: true},
	}
	if e.NoDAD {
		return append(list, procsys.Setting{Key: conf + "accept_dad", Value: "0"})
	}
	return append(list, procsys.Setting{Key: conf + "accept_dad", Value: "1"},
		procsys.Setting{Key: conf + "enhanced_dad", Value: "1", Optional: true})
}

// Ensure implements plan.Resource.
func (e EnableIPv6) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	ns, err := resource.Container.Namespace(w)
	if err != nil {
		return false, err
	}
	settings := e.settings()
	if s, is := e.never(ns); is {
		settings = append(settings, s)
	}
	changed, err := procsys.Set(ns, settings...)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("no IPv6 here (the kernel has none, or the link's MTU is below 1280): %w", err)
	}
	return changed, err
}

// Verify implements plan.Resource.
func (e EnableIPv6) Verify(ctx context.Context, w *kernel.World) error {
	settings := e.settings()
	if ns, err := resource.Container.Namespace(w); err == nil {
		if s, is := e.never(ns); is {
			settings = append(settings, s)
		}
	}
	return verifySysctls(w, settings)
}

// An IPv6Off turns IPv6 off on a link of the container, including the link-local address. A kernel without IPv6 also
// fulfils it.
type IPv6Off struct{ Link string }

func (i IPv6Off) String() string { return "ipv6 off cont/" + i.Link }

// Traits implements resource.Describer.
func (i IPv6Off) Traits() resource.Traits { return resource.Traits{On: resource.Iface{Name: i.Link}} }

func (i IPv6Off) Settings() []procsys.Setting {
	return []procsys.Setting{{Key: "net/ipv6/conf/" + i.Link + "/disable_ipv6", Value: "1", Optional: true}}
}

// Ensure implements plan.Resource.
func (i IPv6Off) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	ns, _, err := resource.Container.Link(w, i.Link)
	if err != nil {
		return false, err
	}
	return procsys.Set(ns, i.Settings()...)
}

// Verify implements plan.Resource.
func (i IPv6Off) Verify(ctx context.Context, w *kernel.World) error {
	if _, _, err := resource.Container.Link(w, i.Link); err != nil {
		return err
	}
	return verifySysctls(w, i.Settings())
}

func verifySysctls(w *kernel.World, settings []procsys.Setting) error {
	var d resource.Drift
	for _, s := range settings {
		err := Sysctl{Key: s.Key, Value: s.Value}.Verify(context.Background(), w)
		if !s.Optional || !errors.Is(err, fs.ErrNotExist) {
			d.Add(err)
		}
	}
	return d.Err()
}
