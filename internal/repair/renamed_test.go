package repair_test

import (
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/internal/repair"
)

// The host's end of a pair that somebody renamed is named by the name that it has, and nothing else is missed: what is
// on the link is there.
//
// clause: P14 P15
func TestRenamedHostEnd(t *testing.T) {
	const limit = `{"type":"bandwidth","ingressRate":100000000,"egressRate":20000000}`
	for name, c := range map[string]struct{ conf, link string }{
		"bridge": {`{"type":"bridge","bridge":"lan","isGateway":true,"ipam":{"type":"host-local","subnet":"10.9.0.0/24"}}`, ""},
		"ptp":    {`{"type":"ptp","ipam":{"type":"host-local","subnet":"10.9.0.0/24"}}`, ""},
		"named":  {`{"type":"bridge","bridge":"lan","hostInterfaceName":"web","isGateway":true,"ipam":{"type":"host-local","subnet":"10.9.0.0/24"}}`, "web"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			l := s.list(`{"cniVersion":"1.1.0","name":"lan","plugins":[` + c.conf + "," + limit + `]}`)
			a := s.add(l, "a")
			link := c.link
			if link == "" {
				link = strings.Fields(strings.ReplaceAll(nstest.Run(t, "sh", "-c", "ip -br link show type veth"), "@",
					" "))[0]
			}
			rename := func(from, to string) {
				nstest.Run(t, "ip", "link", "set", from, "down")
				nstest.Run(t, "ip", "link", "set", from, "name", to, "up")
			}
			rename(link, "foo0")
			for _, dry := range []bool{true, false} {
				report := s.run(&repair.Repairer{DryRun: dry})
				f := report.Findings[0]
				all := strings.Join(f.Differences.Lines(), "\n")
				if f.State != repair.Broken || !strings.Contains(all,
					"link "+link+": link does not exist; it is called foo0 now") {
					t.Errorf("dry %v: %s: %s", dry, f.State, all)
				}
				if strings.Contains(all, "tbf") || strings.Contains(all, "ifb") || strings.Contains(all, "redirect") {
					t.Errorf("dry %v: drift that is none: %s", dry, all)
				}
				for _, d := range f.Differences.Lines() {
					if name != "ptp" && !strings.Contains(d, "link "+link+": link does not exist") {
						t.Errorf("dry %v: drift that is none: %s", dry, d)
					}
				}
			}
			if name != "ptp" { // whose addresses and routes went down with the link
				rename("foo0", link)
				s.whole("renamed back", a)
			}
			if err := s.Del(bounded(t), l, a.Attachment); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// An interface that the container calls otherwise, or has deleted, is what CHECK says it is; and nothing of it is made
// again.
func TestWithoutInterface(t *testing.T) {
	for name, c := range map[string]struct {
		do   []string
		want string
	}{
		"renamed": {[]string{"ip", "link", "set", "eth0", "down", "name", "net9"},
			"link eth0: link does not exist; it is called net9 now"},
		"deleted": {[]string{"ip", "link", "del", "eth0"}, "link eth0: link does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			l := s.list(`{"cniVersion":"1.1.0","name":"lan","plugins":[{"type":"bridge","bridge":"lan","isGateway":true,"ipMasq":true,"ipam":{"type":"host-local","subnet":"10.9.0.0/24"}}]}`)
			a := s.add(l, "a")
			nstest.RunIn(t, a.Netns, c.do[0], c.do[1:]...)
			nstest.Run(t, "nft", "flush", "ruleset")
			for _, dry := range []bool{true, false} {
				report := s.run(&repair.Repairer{DryRun: dry})
				f := report.Findings[0]
				if f.State != repair.Broken || report.OK() || !strings.Contains(strings.Join(f.Differences.Lines(),
					"\n"), c.want) ||
					len(f.Repaired) > 0 {
					t.Errorf("dry %v: %s: %s, repaired %q", dry, f.State, f.Differences.Lines(), f.Repaired)
				}
			}
			if err := s.Check(bounded(t), l, a.Attachment); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("check: %v", err)
			}
			if err := s.Del(bounded(t), l, a.Attachment); err != nil {
				t.Fatal(err)
			}
		})
	}
}
