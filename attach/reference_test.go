package attach_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// The reference's own plugins, as Debian packages them, run under this runtime.
//
// clause: R2 R3 R6 P12
func TestReferencePlugins(t *testing.T) {
	const dir = "/usr/lib/cni"
	nstest.NeedProgram(t, dir+"/bridge")
	leases := t.TempDir()
	for name, tc := range map[string]struct{ list, link, address string }{
		"loopback": {`{"cniVersion":"0.3.1","name":"cni-loopback","plugins":[{"type":"loopback"}]}`, "lo", "127.0.0.1/8"},
		"a chain": {`{"cniVersion":"1.0.0","name":"lan","plugins":[
			{"type":"bridge","bridge":"cni0","ipam":{"type":"host-local","subnet":"10.1.2.0/24","dataDir":"` + leases + `"}},
			{"type":"tuning","capabilities":{"mac":true}}]}`, "eth0", "10.1.2.2/24"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.PluginDirs = []string{dir}
			l := list(t, tc.list)
			a := web(t)
			a.IfName = tc.link
			a.Capabilities = map[string]any{"mac": "02:00:00:00:00:17"}
			result, err := w.Add(bounded(t), l, a)
			if err != nil {
				t.Fatal(err)
			}
			if len(result.IPs) == 0 || result.IPs[0].Address.String() != tc.address {
				t.Errorf("result %+v, want %s", result, tc.address)
			}
			links := nstest.RunIn(t, a.Netns, "ip", "address", "show", "dev", tc.link)
			if !strings.Contains(links, tc.address) || tc.link == "eth0" && !strings.Contains(links, "02:00:00:00:00:17") {
				t.Errorf("in the container: %s", links)
			}
			if l.CNIVersion.AtLeast("0.4.0") {
				if err := w.Check(bounded(t), l, a); err != nil {
					t.Error(err)
				}
				nstest.RunIn(t, a.Netns, "ip", "address", "del", tc.address, "dev", tc.link)
				if err := w.Check(bounded(t), l, a); err == nil || !strings.Contains(err.Error(), "plugin bridge") {
					t.Errorf("CHECK without the address: %v", err)
				}
			}
			for _, a := range []attach.Attachment{a, {ContainerID: "web", IfName: tc.link}} {
				if err := w.Del(bounded(t), l, a, attach.Continue()); err != nil {
					t.Error(err)
				}
			}
			if left, err := filepath.Glob(leases + "/lan/10.*"); err != nil || len(left) > 0 {
				t.Errorf("leases %q, %v", left, err)
			}
		})
	}
}
