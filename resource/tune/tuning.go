package tune

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/procsys"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/addr"
	"github.com/fairlead-cni/fairlead/resource/filter/spoof"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/resource/sysctl"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// final is t as the final result has it: what it does not change is not compared.
func (t Tuning) final(f spec.Interface) plan.Resource {
	if t.MAC != "" {
		t.MAC = cmp.Or(f.MAC, t.MAC)
	}
	if t.MTU != 0 {
		t.MTU = cmp.Or(f.MTU, t.MTU)
	}
	return t
}

// TuningKind returns the Kind of Tuning. DataDir is the directory of the configuration where the reference's plugin
// keeps its backups. GC has nothing to restore, because the container is gone.
func TuningKind(dataDir string) plan.Kind {
	return resource.RecordKind("tuning", resource.TuningRecord,
		func(ctx context.Context, w *kernel.World, t plan.Tag) error {
			mac, _ := resource.PrevMAC(t)
			return Tuning{Owner: t.Owner, Link: t.Owner.IfName, DataDir: dataDir, Seen: mac}.Remove(ctx, w)
		}, func(_ context.Context, _ *kernel.World, _ plan.Tag, r resource.Tuned) error {
			return removeBackup(r.File)
		})
}

// A Tuning changes a link of the container, and sysctls of its network namespace, that another plugin has made. The
// former values are recorded before the first change. Remove restores them for all Tunings of one owner. If two
// tuning plugins in a chain change the same setting, the oldest value is restored.
type Tuning struct {
	Owner    spec.Owner
	Link     string
	MAC      string
	MTU      int
	Promisc  bool // false: as it is
	AllMulti *bool
	TxQLen   *int
	Sysctls  []sysctl.NetSysctl // in the order in which they are written
	Announce []netip.Prefix     // addresses whose neighbours are told of a new MAC
	DataDir  string             // where the reference plugin keeps what was before

	// file of the sysctls that the administrator lets be set; Ensure asks it, for what was allowed once stays so
	AllowList string
	// to be removed: the MAC that the chain's result has, for the reference does not tell one container's link from
	// another's
	Seen string
}

func (t Tuning) String() string {
	words := []string{"tuned cont/" + t.Link}
	want := t.want()
	for _, name := range attrNames() {
		if v, ok := want[name]; ok {
			words = append(words, name+" "+v)
		}
	}
	for _, s := range t.Sysctls {
		words = append(words, "sysctl "+s.String())
	}
	return resource.Line(words...)
}

// Traits implements resource.Describer.
func (t Tuning) Traits() resource.Traits {
	return resource.Traits{
		Ifaces: []resource.Iface{{Where: resource.Container, Name: t.Link}},
		Tell:   t.tell, Final: t.final,
	}
}

func (t Tuning) tell(w *kernel.World, res *spec.Result) error {
	f := resource.InContainer(res, t.Link)
	if f == nil || t.MAC == "" && t.MTU == 0 {
		return nil
	}
	mac, mtu, err := addr.Shown(resource.Iface{Where: resource.Container, Name: t.Link}, w)
	if t.MAC != "" {
		f.MAC = mac
	}
	if t.MTU != 0 {
		f.MTU = mtu
	}
	return err
}

func (t Tuning) want() attrs {
	a := attrs{}
	if t.MAC != "" {
		a["address"] = resource.MACText(t.MAC)
	}
	if t.MTU != 0 {
		a["mtu"] = strconv.Itoa(t.MTU)
	}
	if t.Promisc {
		a["promisc"] = "on"
	}
	if t.AllMulti != nil {
		a["allmulticast"] = onOff(*t.AllMulti)
	}
	if t.TxQLen != nil {
		a["txqueuelen"] = strconv.Itoa(*t.TxQLen)
	}
	return a
}

// link is the link to change. It is nil where there is none and sysctls alone are wanted: the interfaces of DPDK and
// vhost-user are none of the kernel's.
func (t Tuning) link(w *kernel.World) (*kernel.NS, *rtnl.Link, error) {
	ns, l, err := resource.Container.Link(w, t.Link)
	if errors.Is(err, rtnl.ErrNoLink) && len(t.want()) == 0 {
		return ns, nil, nil
	}
	return ns, l, err
}

// Ensure implements plan.Resource.
func (t Tuning) Ensure(ctx context.Context, w *kernel.World) (changed bool, err error) {
	ns, l, err := t.link(w)
	if err != nil {
		return false, err
	}
	if len(t.Sysctls) > 0 && t.AllowList != "" {
		if err := (sysctl.AllowList{File: t.AllowList, Sysctls: t.Sysctls}).Verify(ctx, w); err != nil {
			return false, err
		}
	}
	old, known, err := t.recall(w, l)
	if err == nil && !known {
		err = t.forget(w) // what an earlier container left
	}
	if err != nil {
		return false, err
	}
	rec := old.Clone()
	change := t.want().unlike(attrsOf(l))
	var write []sysctl.NetSysctl
	before, files := map[string]string{}, sysctl.OpenSettings{}
	defer files.Close()
	for _, s := range t.Sysctls {
		was, err := s.Look(w, files)
		if err != nil {
			return false, err
		}
		if before[s.Path] = was; !keeps(rec, s, was) {
			write = append(write, s)
		}
	}
	if len(change) == 0 && len(write) == 0 {
		return false, nil
	}
	if mac, ok := change["address"]; ok && spoof.Checked(ctx, w, t.Owner) {
		return false, spec.Errorf(spec.CodeConfig, "mac %s: the bridge would drop all packets of the container, "+
			"because macspoofchk allows only the MAC that the bridge plugin set, %v: give the bridge plugin the same "+
			"MAC (mac of runtimeConfig or args), or remove one of the two keys", mac, l.MAC)
	}
	for name, v := range change {
		rec.Link.Note(name, attrsOf(l)[name], v, v)
	}
	for _, s := range write {
		rec.Sysctl.Note(s.Path, before[s.Path], s.Value, s.Value)
	}
	err = t.remember(w, rec)
	if err == nil {
		err = t.apply(w, rec, l, change, write, before, files)
	}
	if err != nil {
		errs := []error{err, t.putBack(ns, attrsOf(l), change, before)}
		if known {
			errs = append(errs, t.remember(w, old))
		} else {
			errs = append(errs, t.forget(w))
		}
		return false, errors.Join(errs...)
	}
	return true, nil
}

// apply writes what differs, the sysctls first: with the link's MTU some of them go.
func (t Tuning) apply(w *kernel.World, rec resource.Tuned, l *rtnl.Link, change attrs, write []sysctl.NetSysctl,
	before map[string]string,
	files sysctl.OpenSettings) error {
	host, again := w.Host, false
	if same, err := kernel.Same(w.Host, w.Container); err != nil {
		return err
	} else if same {
		host = nil
	}
	for _, s := range write {
		is, err := s.Set(files[s.Path], host, before[s.Path])
		if err != nil {
			return err
		}
		if !procsys.SameValue(is, s.Value) { // 0x10 is 16, and ranges are joined
			rec.Sysctl[s.Path].Is, again = is, true
		}
	}
	if again {
		if err := t.remember(w, rec); err != nil {
			return err
		}
	}
	if _, ok := change["address"]; ok && len(t.Announce) > 0 && l.Up {
		// As for Announce: who may not say so does not fail for it.
		_, _ = addr.Announce{Link: t.Link, Addrs: t.Announce}.Notify(w.Container, l)
	}
	return t.explain(w, change, change.set(w.Container, t.Link))
}

// explain names the attribute that the kernel did not take: it takes them in an order, and stops at the first.
func (t Tuning) explain(w *kernel.World, change attrs, refused error) error {
	if refused == nil {
		return nil
	}
	_, l, err := resource.Container.Link(w, t.Link)
	if err != nil || errors.Is(refused, unix.EPERM) {
		return refused
	}
	left := change.unlike(attrsOf(l))
	for _, name := range attrNames() {
		if v, ok := left[name]; ok {
			err := spec.Errorf(spec.CodeConfig, "%s: %s: the kernel does not take this for %s: %w", keyOf(name), v,
				t.Link, refused)
			switch name {
			case "address":
				err.WithHint("Some links take another address only while they are down, or never.")
			case "mtu":
				err.WithHint("A link that stands on another one (macvlan, macvtap, ipvlan, vlan) has at most the MTU " +
					"of that one. `fairlead net ls` says in which file it is.")
			}
			return err
		}
	}
	return refused
}

// Verify implements plan.Resource. A later plugin of the same owner may have changed a value (P16).
func (t Tuning) Verify(ctx context.Context, w *kernel.World) error {
	_, l, err := t.link(w)
	if err != nil {
		return err
	}
	rec, _, err := t.recall(w, l)
	if err != nil {
		return err
	}
	var d resource.Drift
	have, want := attrsOf(l), t.want()
	for _, name := range attrNames() {
		if v, ok := want[name]; ok && !(rec.Link[name] != nil && rec.Link[name].Is == have[name]) {
			d.Want(name, v, have[name])
		}
	}
	for _, s := range t.Sysctls {
		v, _, err := procsys.GetNet(w.Container, s.Path)
		if err != nil {
			d.Add(err)
		} else if now := rec.Sysctl[s.Path]; !procsys.SameValue(v, s.Value) &&
			!(now != nil && procsys.SameValue(v, now.Is)) {
			d.Add(spec.Differs(s.Path, strconv.Quote(s.Value), strconv.Quote(v)))
		}
	}
	return d.Err()
}

// Remove implements plan.Remover. It restores all changes of the owner's Tunings, if the link and the namespace are
// still those that were changed. A value that the kernel refuses is reported once and then dropped from the record:
// the container is about to end, and the refusal must not block DEL.
func (t Tuning) Remove(ctx context.Context, w *kernel.World) error {
	_, l, err := resource.Container.Link(w, t.Link)
	switch {
	case errors.Is(err, rtnl.ErrNoLink):
		l = nil // the namespace's settings are there still
	case errors.Is(err, kernel.ErrNoNamespace):
		return t.forget(w)
	case err != nil:
		return err
	}
	rec, known, err := t.recall(w, l)
	if err != nil {
		return err
	}
	if !known {
		if other, err := link.TakenByAnother(w, t.Owner); other || err != nil {
			return err // the reference's file has the name of the container and the interface alone: it is the other's
		}
		// What was remembered of another container is in the reference's file as well.
		other, err := w.Store.Get(resource.TuningRecord, t.Owner, &resource.Tuned{})
		if err == nil && !other && l != nil && (t.Seen == "" || resource.MACText(t.Seen) == l.MAC.String()) {
			rec.Link = t.backedUp()
		}
	}
	link, sysctls := attrs{}, map[string]string{}
	for name, c := range rec.Link {
		link[name] = c.Was
	}
	for path, c := range rec.Sysctl {
		sysctls[path] = c.Was
	}
	return errors.Join(t.putBack(w.Container, link, link, sysctls), t.forget(w))
}

// putBack gives the link the attributes of was that are named in changed, and the settings their values.
func (t Tuning) putBack(ns *kernel.NS, was, changed attrs, sysctls map[string]string) error {
	var errs []error
	back := attrs{}
	for name := range changed {
		back[name] = was[name]
	}
	if l, err := rtnl.LinkByName(ns, t.Link); err != nil {
		errs = append(errs, resource.ExceptNoLink(err))
	} else if back = back.unlike(attrsOf(l)); back.set(ns, t.Link) != nil {
		for name, v := range back { // what can be put back is
			errs = append(errs, attrs{name: v}.set(ns, t.Link))
		}
	}
	// In the order in which they were written: conf/all sets conf/eth0 too.
	var paths []string
	for path := range sysctls {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	for _, path := range paths {
		if err := restore(ns, path, sysctls[path]); !errors.Is(err, unix.ENOENT) { // else it went with its link
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// restore writes a setting where it has another value.
func restore(ns *kernel.NS, path, value string) error {
	f, err := procsys.OpenNet(ns, path)
	if err != nil {
		return err
	}
	defer f.Close()
	now, err := f.Value()
	if err == nil && !procsys.SameValue(now, value) {
		_, err = f.Set(strings.TrimSpace(value))
	}
	return err
}
