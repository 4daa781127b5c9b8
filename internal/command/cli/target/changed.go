package target

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/spec"
)

// AsAttached makes t use the configuration that the attachment was made with, if the cache has it. Only the plugins
// and keys of then can remove what they made.
func AsAttached(a *app.App, t *Target) (err error) {
	c := t.Entry()
	if c == nil {
		return nil
	}
	was := c.AttachedBy(t.List)
	if was == t.List {
		return nil
	}
	if !t.Remembered {
		NoteChanged(a, t.List, []attach.Cached{*c})
	}
	t.Network = &netconf.Network{List: was, BuiltIn: t.BuiltIn, Remembered: true}
	t.Runtime, err = netconf.Runtime(a, t.Network)
	return err
}

// Entry returns the attachment as the cache has it, or nil.
func (t *Target) Entry() *attach.Cached {
	list, _ := t.Runtime.List(t.Name)
	i := slices.IndexFunc(list, func(c attach.Cached) bool { return !c.Bare && c.Owner() == t.Owner() })
	if i < 0 {
		return nil
	}
	return &list[i]
}

// Owner returns the owner of the attachment.
func (t *Target) Owner() spec.Owner {
	return spec.Owner{Network: t.Name, ContainerID: t.ContainerID, IfName: t.IfName}
}

// NoteChanged warns that the configuration of a network has changed since the deleted attachments were made, one
// line for each difference.
func NoteChanged(a *app.App, now *spec.List, deleted []attach.Cached) {
	var order []string
	who := map[string][]string{}
	for _, c := range deleted {
		if d := strings.Join(Differences(c.AttachedBy(now), now), "; "); d != "" {
			if who[d] == nil {
				order = append(order, d)
			}
			who[d] = append(who[d], c.ContainerID+"/"+c.IfName)
		}
	}
	for _, d := range order {
		a.Note("warning: the configuration of network %s has changed since the attachment was made (%s); the old "+
			"one is used for %s", now.Name, d, strings.Join(who[d], ", "))
	}
}

// Differences returns the plugins and keys that differ between two lists, in the order of was. It never returns
// values, because a list may contain secrets.
func Differences(was, now *spec.List) (all []string) {
	if was == now {
		return nil
	}
	was, now = was.WrittenOut(), now.WrittenOut()
	rest := slices.Clone(now.Plugins)
	var order []*spec.Conf // the plugins of now, in the order of was
	for _, p := range was.Plugins {
		i := slices.IndexFunc(rest, func(q *spec.Conf) bool { return q.Type == p.Type })
		if i < 0 {
			all = append(all, p.Type+" is removed")
			continue
		}
		if keys := differing(p.Object, rest[i].Object); len(keys) > 0 {
			all = append(all, p.Type+": "+strings.Join(keys, ", "))
		}
		order = append(order, rest[i])
		rest = slices.Delete(rest, i, i+1)
	}
	for _, p := range rest {
		all = append(all, p.Type+" is new")
	}
	if len(rest) == 0 && len(order) == len(was.Plugins) && !slices.Equal(order, now.Plugins) {
		all = append(all, "the order of the plugins")
	}
	return all
}

// differing returns the keys whose values differ, and for values that are objects the keys inside.
func differing(a, b spec.Object) (keys []string) {
	one, other := members(a), members(b)
	names := append(a.Keys(), b.Keys()...)
	for i, key := range names {
		if slices.Contains(names[:i], key) || reflect.DeepEqual(one[key], other[key]) {
			continue
		}
		x, isObject := one[key].(map[string]any)
		y, both := other[key].(map[string]any)
		if !isObject || !both {
			keys = append(keys, key)
			continue
		}
		var inside []string
		for k, v := range x {
			if w, there := y[k]; !there || !reflect.DeepEqual(v, w) {
				inside = append(inside, key+"."+k)
			}
		}
		for k := range y {
			if _, there := x[k]; !there {
				inside = append(inside, key+"."+k)
			}
		}
		slices.Sort(inside)
		keys = append(keys, inside...)
	}
	return keys
}

func members(o spec.Object) map[string]any {
	all := map[string]any{}
	for _, key := range o.Keys() {
		raw, _ := o.Get(key)
		var v any
		if json.Unmarshal(raw, &v) == nil {
			all[key] = v
		}
	}
	return all
}
