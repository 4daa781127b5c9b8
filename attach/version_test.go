package attach_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

// clause: V10 V3
func TestVersionSelection(t *testing.T) {
	for _, tc := range []struct {
		name, list string
		version    string // that ADD's result has
		calls      string
	}{
		{"one version, nobody is asked", `"cniVersion":"0.4.0","plugins":[{"type":"first"},{"type":"old"}]`, "0.4.0", "ADD first, ADD old"},
		{"the highest", `"cniVersion":"0.4.0","cniVersions":["0.4.0","1.0.0"],"plugins":[{"type":"first"}]`, "1.0.0", "ADD first"},
		{"not above ours", `"cniVersion":"0.4.0","cniVersions":["1.0.0","7.0.0"],"plugins":[{"type":"first"}]`, "1.0.0", "ADD first"},
		{"that all speak", `"cniVersion":"0.4.0","cniVersions":["0.4.0","1.1.0"],"plugins":[{"type":"first"},{"type":"old"}]`, "0.4.0",
			"ADD first, ADD old, VERSION first, VERSION old, DEL old, DEL first, ADD first, ADD old"},
		{"the one that cniVersions leaves out", `"cniVersion":"0.4.0","cniVersions":["1.1.0"],"plugins":[{"type":"first"},{"type":"old"}]`, "0.4.0",
			"ADD first, ADD old, VERSION first, VERSION old, DEL old, DEL first, ADD first, ADD old"},
		{"none that all speak", `"cniVersion":"1.0.0","cniVersions":["1.0.0","1.1.0"],"plugins":[{"type":"first"},{"type":"old"}]`, "",
			"ADD first, ADD old, VERSION first, VERSION old, DEL old, DEL first"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			a := web(t)
			l := list(t, `{"name":"lan",`+tc.list+`}`)
			result, err := w.Add(bounded(t), l, a)
			if (err == nil) != (tc.version != "") || err == nil && string(result.CNIVersion) != tc.version {
				t.Errorf("%+v, %v, want version %s", result, err, tc.version)
			}
			w.expect(tc.calls)
			if tc.version == "" {
				return
			}
			// CHECK and DEL speak the version of ADD and need not ask again.
			if err := errors.Join(w.Check(bounded(t), l, a), w.Del(bounded(t), l, a)); err != nil {
				t.Error(err)
			}
			for _, c := range w.told() {
				var conf struct {
					CNIVersion string
					PrevResult struct{ CNIVersion string }
				}
				if err := json.Unmarshal(c.Stdin, &conf); err != nil {
					t.Fatal(err)
				}
				if conf.CNIVersion != tc.version || conf.PrevResult.CNIVersion != tc.version {
					t.Errorf("%v: version %s, prevResult's %s, want %s", c, conf.CNIVersion, conf.PrevResult.CNIVersion, tc.version)
				}
			}
		})
	}
	// The plugin directory was switched to an older release after ADD.
	t.Run("older plugins than ADD had", func(t *testing.T) {
		w := newWorld(t)
		a := web(t)
		list := func(last string) *spec.List {
			return list(t, `{"cniVersion":"0.4.0","cniVersions":["1.1.0"],"name":"lan","plugins":[{"type":"first"},{"type":"`+last+`"}]}`)
		}
		if _, err := w.Add(bounded(t), list("second"), a); err != nil {
			t.Fatal(err)
		}
		w.told()
		if err := w.Check(bounded(t), list("old"), a); err != nil {
			t.Error(err)
		}
		w.expect("CHECK first, CHECK old, VERSION first, VERSION old, CHECK first, CHECK old")
		if err := w.Del(bounded(t), list("old"), a); err != nil {
			t.Error(err)
		}
		w.expect("DEL old, VERSION first, VERSION old, DEL old, DEL first")
	})
	t.Run("a version that does not exist", func(t *testing.T) {
		w := newWorld(t)
		_, err := w.Add(bounded(t), chain(t, "9.9.9", three[:1], nil), web(t))
		var doc *spec.Error
		if !errors.As(err, &doc) || doc.Code != spec.CodeVersion {
			t.Errorf("%v: want code 1", err)
		}
		w.expect("")
	})
}

// The network's file got another cniVersion after ADD. DEL by the list of ADD speaks the version of ADD. DEL by the list
// of now speaks a version that this list offers, if possible that of ADD. prevResult is always in the same version.
//
// clause: V10 V3
func TestDelAfterChangeOfVersion(t *testing.T) {
	gc := func(w *world, now *spec.List, _ attach.Attachment) error {
		return w.GC(bounded(t), now, []spec.Attachment{})
	}
	again := func(w *world, now *spec.List, a attach.Attachment) error {
		a.Netns = nstest.NewNS(t)
		_, err := w.Add(bounded(t), now, a)
		return err
	}
	each := func(w *world, now *spec.List, _ attach.Attachment) error {
		all, _ := w.List("lan")
		return errors.Join(w.DelEach(bounded(t), now, all)...)
	}
	asReference := func(w *world, now *spec.List, a attach.Attachment) error { return w.Del(bounded(t), now, a) }
	for _, tc := range []struct {
		name     string
		do       func(*world, *spec.List, attach.Attachment) error
		was, now string
		version  string
		prev     string
	}{
		{"GC", gc, `"cniVersion":"0.4.0"`, `"cniVersion":"1.1.0"`, "0.4.0", "0.4.0"},
		{"GC, back", gc, `"cniVersion":"1.1.0"`, `"cniVersion":"0.4.0"`, "1.1.0", "1.1.0"},
		{"GC, from one without prevResult", gc, `"cniVersion":"0.3.1"`, `"cniVersion":"1.1.0"`, "0.3.1", ""},
		{"ADD again", again, `"cniVersion":"0.4.0"`, `"cniVersion":"1.1.0"`, "0.4.0", "0.4.0"},
		{"several", each, `"cniVersion":"0.4.0"`, `"cniVersion":"1.1.0"`, "0.4.0", "0.4.0"},
		{"DEL", asReference, `"cniVersion":"0.4.0"`, `"cniVersion":"1.1.0"`, "1.1.0", "1.1.0"},
		{"DEL, back", asReference, `"cniVersion":"1.1.0"`, `"cniVersion":"0.4.0"`, "0.4.0", "0.4.0"},
		{"DEL, to one without prevResult", asReference, `"cniVersion":"1.1.0"`, `"cniVersion":"0.3.1"`, "0.3.1", ""},
		{"DEL, offered still", asReference, `"cniVersion":"0.4.0"`, `"cniVersion":"1.1.0","cniVersions":["0.4.0"]`, "0.4.0", "0.4.0"},
		{"DEL, cniVersion still", asReference, `"cniVersion":"0.4.0"`, `"cniVersion":"0.4.0","cniVersions":["1.1.0"]`, "0.4.0", "0.4.0"},
		{"DEL, not offered any more", asReference, `"cniVersion":"0.4.0"`, `"cniVersion":"1.0.0","cniVersions":["1.1.0"]`, "1.1.0", "1.1.0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			parse := func(versions string) *spec.List {
				return list(t, `{"name":"lan",`+versions+`,"plugins":[{"type":"first"}]}`)
			}
			a := attach.Attachment{ContainerID: "web", Netns: "/run/netns/version", IfName: "eth0"}
			if err := nstest.MakeNS(a.Netns); err != nil {
				t.Fatal(err)
			}
			w := added(t, parse(tc.was), a)
			if err := nstest.RemoveNS(a.Netns); err != nil {
				t.Fatal(err)
			}
			if err := tc.do(w, parse(tc.now), a); err != nil {
				t.Fatal(err)
			}
			c := w.told()[0]
			var conf struct {
				CNIVersion string
				PrevResult struct {
					CNIVersion string
					IPs        []struct{ Version string } // which ended with 1.0.0
				}
			}
			if err := json.Unmarshal(c.Stdin, &conf); err != nil {
				t.Fatal(err)
			}
			if c.Command != "DEL" || conf.CNIVersion != tc.version || conf.PrevResult.CNIVersion != tc.prev {
				t.Errorf("%v: version %s, prevResult's %q, want %s, %q", c, conf.CNIVersion, conf.PrevResult.CNIVersion,
					tc.version, tc.prev)
			}
			for _, ip := range conf.PrevResult.IPs {
				if old := tc.prev == "0.4.0"; old != (ip.Version == "4") {
					t.Errorf("%v: prevResult of version %s with ips.version %q", c, tc.prev, ip.Version)
				}
			}
		})
	}
}
