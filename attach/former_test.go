package attach_test

import (
	"testing"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

// What was attached by another list than the network has now is deleted by that one: by a GC, by the ADD of a container
// that came back, and by a DEL whose caller asks for it.
func TestFormerList(t *testing.T) {
	was := list(t, `{"cniVersion":"1.1.0","name":"lan","plugins":[{"type":"first","key":1},{"type":"third"}]}`)
	now := list(t, `{"cniVersion":"1.1.0","name":"lan","plugins":[{"type":"second"}]}`)
	for name, tc := range map[string]struct {
		do   func(*world, attach.Attachment) error
		want string
	}{
		"GC": {func(w *world, _ attach.Attachment) error {
			return w.GC(bounded(t), now, []spec.Attachment{})
		}, "DEL third, DEL first, GC second"},
		"ADD": {func(w *world, a attach.Attachment) error {
			if err := nstest.RemoveNS(a.Netns); err != nil {
				return err
			}
			a.Netns = nstest.NewNS(t)
			_, err := w.Add(bounded(t), now, a)
			return err
		}, "DEL third, DEL first, ADD second"},
		"DEL": {func(w *world, a attach.Attachment) error {
			all, _ := w.List("lan")
			return w.Del(bounded(t), all[0].AttachedBy(now), a)
		}, "DEL third, DEL first"},
		"DEL as the reference": {func(w *world, a attach.Attachment) error {
			return w.Del(bounded(t), now, a)
		}, "DEL second"},
	} {
		t.Run(name, func(t *testing.T) {
			a := attach.Attachment{ContainerID: "web", Netns: "/run/netns/former", IfName: "eth0"}
			if err := nstest.MakeNS(a.Netns); err != nil {
				t.Fatal(err)
			}
			defer nstest.RemoveNS(a.Netns)
			w := added(t, was, a)
			if err := tc.do(w, a); err != nil {
				t.Fatal(err)
			}
			w.expect(tc.want)
		})
	}
}

// What cannot be read, and what is of another network, is no list to go by; and a folder's plugins are those of now.
func TestAttachedBy(t *testing.T) {
	const was, now = `{"cniVersion":"1.1.0","name":"lan","plugins":[{"type":"first"}]}`, `{"cniVersion":"1.1.0","name":"lan","plugins":[{"type":"second"}]}`
	dropIn := list(t, now)
	dropIn.Plugins = append(dropIn.Plugins, list(t, `{"name":"lan","plugins":[{"type":"third"}]}`).Plugins...)
	for name, tc := range map[string]struct {
		config string
		now    *spec.List
		want   string // types
	}{
		"changed":        {was, list(t, now), "first"},
		"drop-in folder": {was, dropIn, "first third"},
		"no folder":      {`{"cniVersion":"1.1.0","name":"lan","loadOnlyInlinedPlugins":true,"plugins":[{"type":"first"}]}`, dropIn, "first"},
		"the same":       {now, dropIn, "second third"},
		"no file":        {was, nil, "first"},
		"torn":           {was[:40], list(t, now), "second"},
		"none":           {"", list(t, now), "second"},
		"no plugins":     {`{"cniVersion":"1.1.0","name":"lan"}`, list(t, now), "second"},
		"other network":  {`{"cniVersion":"1.1.0","name":"wan","plugins":[{"type":"first"}]}`, list(t, now), "second"},
		"other version":  {`{"cniVersion":"9.0.0","name":"lan","plugins":[{"type":"first"}]}`, list(t, now), "second"},
		"none, no file":  {"", nil, ""},
	} {
		c := &attach.Cached{Network: "lan", Config: []byte(tc.config)}
		got := ""
		if l := c.AttachedBy(tc.now); l != nil {
			for i, p := range l.Plugins {
				if i > 0 {
					got += " "
				}
				got += p.Type
			}
		}
		if got != tc.want {
			t.Errorf("%s: plugins %s, want %s", name, got, tc.want)
		}
	}
}
