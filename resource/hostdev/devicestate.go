package hostdev

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/procsys"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"golang.org/x/sys/unix"
)

// A deviceState is what a device was on the host. All of it either goes with the move or may be changed in a container,
// whose root may do to its devices what it likes.
type deviceState struct {
	Link     string // its name, which is its alias meanwhile: what is in a container without a record is known by it
	Kind     string
	Alias    string
	AltNames []string
	MAC      string
	MTU      int
	TxQLen   int
	Up       bool
	Promisc  bool
	AllMulti bool
	Master   string
	Port     *rtnl.BridgePort // of the bridge that Master is
	VLANs    []rtnl.PortVLAN  // likewise
	VLAN     *vlanState       // a vlan dies with its container's namespace
	Group    uint32
	Traits   *rtnl.Traits     // nil in the records of earlier versions, which have no group either
	Params   []byte           // likewise; see rtnl.Link.Params
	Settings map[string]int32 // see rtnl.Link.Settings; without those that follow the host's
	Addrs    []rtnl.Saved
	Routes   []rtnl.Saved
}

// A vlanState is what it takes to make a vlan again.
type vlanState struct {
	Master   string
	ID       uint16
	Protocol uint16
}

func deviceStateOf(w *kernel.World, l *rtnl.Link) (s deviceState, err error) {
	s = deviceState{
		Link: l.Name, Kind: l.Kind, Alias: l.Alias, AltNames: l.AltNames(), MAC: l.MAC.String(), MTU: l.MTU,
		TxQLen: l.TxQLen,
		Up:     l.Up, Promisc: l.Promisc, AllMulti: l.AllMulti, Port: l.Port, Group: l.Group, Traits: &l.Traits,
		Params: l.Params(), Settings: l.Settings(),
	}
	for key, of := range hostSettings(w) {
		if s.Settings[key] == of {
			delete(s.Settings, key)
		}
	}
	if l.Master != 0 {
		m, err := rtnl.LinkByIndex(w.Host, l.Master)
		if err != nil {
			return s, err
		}
		s.Master = m.Name
	}
	if l.Port != nil {
		if s.VLANs, err = rtnl.PortVLANs(w.Host, l.Index); err != nil && !errors.Is(err, rtnl.ErrNoBridgeVLANs) {
			return s, err
		}
	}
	if l.Kind == "vlan" && !l.PeerAway {
		below, err := rtnl.LinkByIndex(w.Host, l.Peer)
		if err != nil {
			return s, err
		}
		s.VLAN = &vlanState{below.Name, l.Data.VLAN, l.Data.Protocol}
	}
	if s.Addrs, err = rtnl.SaveAddrs(w.Host, l.Index); err != nil {
		return s, err
	}
	if l.Up { // what is down has no routes
		s.Routes, err = rtnl.SaveRoutes(w.Host, l.Index)
	}
	return s, err
}

// makeVLAN makes the vlan again that died with its container, as soon as it has: a link has a VLAN once.
func (s deviceState) makeVLAN(ctx context.Context, w *kernel.World) (l *rtnl.Link, err error) {
	below, err := rtnl.LinkByName(w.Host, s.VLAN.Master)
	if err != nil {
		return nil, resource.ExceptNoLink(err) // it went with that
	}
	if _, err := rtnl.IndexOf(w.Host, s.Link); err == nil {
		slog.Warn("another link of the host has the device's name", "device", s.Link)
		return nil, nil
	}
	err = rtnl.Await(w.Host, ctx, deviceLimit, []uint{rtnl.LinkEvents}, func() (bool, error) {
		err := rtnl.AddLink(w.Host, rtnl.NewLink{Name: s.Link, Kind: "vlan", Parent: below.Index,
			Data: rtnl.VLANData(s.VLAN.ID, s.VLAN.Protocol)})
		if errors.Is(err, rtnl.ErrLinkExists) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return nil, err
	}
	return rtnl.LinkByName(w.Host, s.Link)
}

// rename sets a link down for that: before Linux 6.2 the kernel renames none that is up, and in one message it takes
// the name before the state.
func rename(ns *kernel.NS, l *rtnl.Link, name string) error {
	if l.Up {
		if err := rtnl.MoveLink(ns, l.Index, rtnl.LinkChange{Down: true}); err != nil {
			return err
		}
		l.Up = false
	}
	return rtnl.MoveLink(ns, l.Index, rtnl.LinkChange{Rename: name})
}

// restore makes a link of the host what it was. The alias comes last: by it the link is found where this was cut short.
func (s deviceState) restore(w *kernel.World, l *rtnl.Link) error {
	name, err := s.restoreName(w, l)
	if err != nil {
		return err
	}
	var errs []error
	set := func(c rtnl.LinkChange) { errs = append(errs, rtnl.SetLink(w.Host, name, c)) }
	may := func(err error) { // of what the host may not take back as it was
		if kernel.Unanswered(err) {
			errs = append(errs, err)
		} else if err != nil {
			slog.Info("not put back", "device", s.Link, "error", err)
		}
	}
	if mac, err := net.ParseMAC(s.MAC); err == nil && l.MAC.String() != s.MAC {
		set(rtnl.LinkChange{MAC: mac})
	}
	if l.MTU != s.MTU {
		set(rtnl.LinkChange{MTU: s.MTU})
	}
	if l.TxQLen != s.TxQLen {
		set(rtnl.LinkChange{TxQLen: &s.TxQLen})
	}
	if l.Promisc != s.Promisc || l.AllMulti != s.AllMulti {
		set(rtnl.LinkChange{Promisc: &s.Promisc, AllMulti: &s.AllMulti})
	}
	if s.Traits != nil {
		may(rtnl.SetTraits(w.Host, l, *s.Traits))
	}
	if s.Params != nil {
		may(rtnl.SetParams(w.Host, l, s.Params))
	}
	if s.Traits != nil && l.Group != s.Group {
		errs = append(errs, rtnl.MoveLink(w.Host, l.Index, rtnl.LinkChange{Group: &s.Group}))
	}
	s.restoreSettings(w, name, l)
	if s.Master != "" {
		errs = append(errs, s.restoreMaster(w, name, l))
	}
	if l.Up != s.Up {
		set(rtnl.LinkChange{Up: s.Up, Down: !s.Up})
	}
	for _, a := range s.Addrs {
		if err := rtnl.RestoreAddr(w.Host, l.Index, a); !errors.Is(err, unix.EEXIST) {
			errs = append(errs, err)
		}
	}
	for _, r := range s.Routes { // the host may have another way by now, or not the way to a gateway
		if err := rtnl.RestoreRoute(w.Host, l.Index, r); !errors.Is(err, unix.EEXIST) {
			may(err)
		}
	}
	s.restoreAltNames(w, name, l, may)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("give %s back: %w", s.Link, err)
	}
	if l.Alias != s.Alias {
		return rtnl.SetAlias(w.Host, l.Index, s.Alias)
	}
	return nil
}

// restoreName gives the device its name back, unless another link has it by now, and returns the name that it has then.
func (s deviceState) restoreName(w *kernel.World, l *rtnl.Link) (string, error) {
	if l.Name == s.Link {
		return s.Link, nil
	}
	err := rename(w.Host, l, s.Link)
	if errors.Is(err, rtnl.ErrLinkExists) {
		slog.Warn("another link of the host has the device's name, so it keeps the one that it has", "device",
			s.Link, "now", l.Name)
		return l.Name, nil
	}
	return s.Link, err
}

// hostSettings are those that the kernel gives to all links when they are set for "all". A link that was away meanwhile
// is to have them, too.
func hostSettings(w *kernel.World) map[string]int32 {
	all := map[string]int32{}
	for _, key := range []string{"ipv4 forwarding", "ipv6 forwarding", "ipv6 disable_ipv6"} {
		if text, err := procsys.Get(w.Host, settingKey(key, "all")); err == nil {
			if v, err := strconv.Atoi(text); err == nil {
				all[key] = int32(v)
			}
		}
	}
	return all
}

func settingKey(key, link string) string {
	family, file, _ := strings.Cut(key, " ")
	return "net/" + family + "/conf/" + link + "/" + file
}

// restoreSettings comes before the link is up: they say whom the host lets configure it.
func (s deviceState) restoreSettings(w *kernel.World, name string, l *rtnl.Link) {
	is, want := l.Settings(), hostSettings(w)
	maps.Copy(want, s.Settings)
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if v, ok := is[key]; ok && v == want[key] {
			continue
		}
		if _, err := procsys.Set(w.Host, procsys.Setting{Key: settingKey(key, name),
			Value:    strconv.Itoa(int(want[key])),
			Optional: true}); err != nil {
			slog.Info("not put back", "device", s.Link, "error", err)
		}
	}
}

func (s deviceState) restoreMaster(w *kernel.World, name string, l *rtnl.Link) error {
	m, err := rtnl.LinkByName(w.Host, s.Master)
	if err != nil {
		slog.Warn("the device's master is gone", "device", s.Link, "master", s.Master)
		return resource.ExceptNoLink(err)
	}
	if l.Master == m.Index {
		return nil
	}
	err = rtnl.SetLink(w.Host, name, rtnl.LinkChange{Master: m.Index})
	if err == nil && s.Port != nil && (s.Port.Hairpin || s.Port.Isolated) {
		err = rtnl.SetLink(w.Host, name, rtnl.LinkChange{Port: s.Port})
	}
	if err != nil || s.Port == nil {
		return err
	}
	have, err := rtnl.PortVLANs(w.Host, l.Index) // the bridge's default one
	if errors.Is(err, rtnl.ErrNoBridgeVLANs) || err == nil && slices.Equal(have, s.VLANs) {
		return nil
	}
	return errors.Join(err, rtnl.DelPortVLANs(w.Host, l.Index, have), rtnl.AddPortVLANs(w.Host, l.Index, s.VLANs))
}

// restoreAltNames leaves those that it had. They go with it and are for people, so that nothing fails for one.
func (s deviceState) restoreAltNames(w *kernel.World, name string, l *rtnl.Link, may func(error)) {
	have := l.AltNames()
	for _, alt := range have {
		if !slices.Contains(s.AltNames, alt) {
			may(rtnl.DelAltNames(w.Host, l.Index, alt))
		}
	}
	for _, alt := range s.AltNames {
		if !slices.Contains(have, alt) {
			may(rtnl.AddAltName(w.Host, name, alt))
		}
	}
}
