package filter

import (
	"context"
	"errors"
	"fmt"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/internal/kernel/procsys"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
)

// Guard is the first step of a repair that needs it. It makes the static part of our tables. No rule there lets a
// packet in, and one keeps packets to 127.0.0.0/8 out. If the tables cannot be made, Guard turns route_localnet off
// on the links of containers until they can.
//
// Did says what had to be made. Stand is for Guarded, which tells later whether the tables stayed.
func Guard(ctx context.Context, w *kernel.World) (did []string, stand Standing, err error) {
	stand = Standing{}
	for _, t := range []*nft.Table{Inet(), Bridge()} {
		err = Transact(ctx, w, t, func(f Tx) error {
			handle, there, err := f.Handle(t)
			if err != nil || !there && len(stand) > 0 { // the bridge's table is made with the first spoof check
				return err
			}
			stand[t.String()] = handle
			found, fix, err := f.Diff(t)
			if err != nil || len(found) == 0 {
				return err
			}
			for _, d := range found {
				did = append(did, d.Error())
			}
			shut, serr := shutLocalnet(w) // where /proc/sys cannot be written, the transaction has to do
			if fix.Empty() {
				return errors.Join(append(found, serr)...)
			}
			if err := f.Write(fix); err != nil {
				return errors.Join(err, serr)
			}
			if stand[t.String()], _, err = f.Handle(t); err != nil {
				return err
			}
			return reopen(w, shut)
		})
		if err != nil {
			return did, stand, err
		}
	}
	return did, stand, nil
}

// A Standing maps names of tables to their handles. A table that was deleted and made again has another handle.
type Standing map[string]uint64

// Guarded reports whether the tables that Guard saw to still exist and are complete. A table that did not exist then
// counts as complete.
func Guarded(ctx context.Context, w *kernel.World, was Standing) (ok bool, err error) {
	ok = true
	for _, t := range []*nft.Table{Inet(), Bridge()} {
		handle, known := was[t.String()]
		if !known {
			continue
		}
		err := Transact(ctx, w, t, func(f Tx) error {
			now, there, err := f.Handle(t)
			if err == nil && there && now == handle {
				var found []error
				found, _, err = f.Diff(t)
				ok = ok && len(found) == 0
				return err
			}
			ok = false
			return err
		})
		if err != nil {
			return false, err
		}
	}
	return ok, nil
}

// Shut does what is possible before our tables are deleted; see shutLocalnet. Ensure of published ports reverses it.
func Shut(_ context.Context, w *kernel.World) (did []string, err error) {
	shut, err := shutLocalnet(w)
	for _, s := range shut {
		did = append(did, "sysctl "+s.Key+"=0")
	}
	return did, err
}

// shutLocalnet turns route_localnet off on the links of our containers, and returns the settings that turn it on
// again. While the rules are missing, route_localnet lets these containers reach services on the host's 127.0.0.1.
func shutLocalnet(w *kernel.World) (shut []procsys.Setting, err error) {
	links, err := rtnl.Links(w.Host)
	if err != nil {
		return nil, err
	}
	behind := map[int]bool{}
	for _, l := range links {
		// What the reference's plugins have published since a handover, no plugin would give back.
		if network, owner, _, ok := identity.ParseTag(l.Alias); ok &&
			w.Store.Has(resource.HandedRecord, network, owner) &&
			!w.Store.Has(resource.MadeRecord, network, owner) {
			continue
		}
		if identity.OfGroup(l.Group) {
			behind[l.Index], behind[l.Master] = true, true
		}
	}
	for _, l := range links {
		if !behind[l.Index] {
			continue
		}
		key := "net/ipv4/conf/" + l.Name + "/route_localnet"
		if v, err := procsys.Get(w.Host, key); err != nil || v != "1" {
			continue // it may be gone by now
		}
		if _, err := procsys.Set(w.Host, procsys.Setting{Key: key, Value: "0"}); err != nil {
			return shut, err
		}
		shut = append(shut, procsys.Setting{Key: key, Value: "1", Optional: true})
	}
	return shut, nil
}

func reopen(w *kernel.World, shut []procsys.Setting) error {
	if _, err := procsys.Set(w.Host, shut...); err != nil {
		return fmt.Errorf("give route_localnet back: %w", err)
	}
	return nil
}
