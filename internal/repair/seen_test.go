package repair_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/extra"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/internal/repair"
	"github.com/fairlead-cni/fairlead/internal/restore"
	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// foreignPlugin is a plugin of another project, which offers to repair what it made. It writes down what it is asked, and
// answers what the file beside it says.
const foreignPlugin = `#!/bin/sh
case $CNI_COMMAND in
VERSION) cat > /dev/null; echo '{"cniVersion":"1.1.0","supportedVersions":["1.1.0"],"fairlead":{"repair":1}}' ;;
FAIRLEAD_REPAIR) cat >> $0.asked; echo >> $0.asked
	for f in $LOCKS/container-*; do flock -n $f true || echo locked >> $0.held; done
	. $0.answer ;;
*) sed 's/.*"prevResult"://; s/}$//' ;;
esac
`

// A plugin of another project repairs its part: what keeps packets out before Fairlead's own, and all of it afterwards,
// while the attachment is locked. A dry run asks once, and tells what there should be.
func TestForeignPlugin(t *testing.T) {
	s := newSite(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "theirs")
	if err := os.WriteFile(path, []byte(foreignPlugin), 0o755); err != nil {
		t.Fatal(err)
	}
	s.PluginDirs = append(s.PluginDirs, dir)
	a := s.add(s.list(`{"cniVersion":"1.1.0","name":"lan","plugins":[{"type":"ptp","ipam":{"type":"host-local","subnet":"10.9.0.0/24"}},{"type":"theirs"}]}`), "a")
	t.Setenv("LOCKS", attach.DefaultLockDir)

	const repaired = `echo '{"plan":[],"repaired":["their rule"]}'`
	const wrong = `echo '{"plan":[{"resource":"their rule"}],"wrong":[{"text":"their rule is missing"}]}'`
	const failing = `echo '{"cniVersion":"1.1.0","code":100,"msg":"their fault"}'; exit 1`
	for _, tc := range []struct {
		answer     string
		dry        bool
		state      repair.State
		asked      int
		said, made string
	}{
		{repaired, false, repair.Repaired, 2, "", "their rule"},
		{wrong, false, repair.Broken, 2, "their rule is missing", ""},
		{wrong, true, repair.Broken, 1, "their rule is missing", ""},
		{failing, false, repair.Broken, 2, "their fault", ""},
	} {
		if err := os.WriteFile(path+".answer", []byte(tc.answer), 0o644); err != nil {
			t.Fatal(err)
		}
		os.Remove(path + ".asked")
		os.Remove(path + ".held")
		f := s.run(&repair.Repairer{DryRun: tc.dry, External: func(ctx context.Context, _ *spec.List, typ string) *extra.External {
			if typ != "theirs" {
				return nil
			}
			return extra.Ask(ctx, path, invoke.Call{})
		}}).Findings[0]

		asked, _ := os.ReadFile(path + ".asked")
		var closes []bool
		for line := range bytes.Lines(asked) {
			var q extra.RepairRequest
			if err := json.Unmarshal(line, &q); err != nil || q.DryRun != tc.dry || !bytes.Contains(q.Conf, []byte(`"theirs"`)) {
				t.Errorf("it was asked %s, %v", line, err)
			}
			closes = append(closes, q.Closes)
		}
		if want := []bool{true, false}[2-tc.asked:]; !slices.Equal(closes, want) {
			t.Errorf("%s: asked with closes %v, want %v", tc.answer, closes, want)
		}
		if held, _ := os.ReadFile(path + ".held"); bytes.Count(held, []byte("locked")) != tc.asked {
			t.Errorf("%s: the attachment was not locked: %q", tc.answer, held)
		}
		said := strings.Join(f.Differences.Lines(), "; ")
		if f.State != tc.state || !strings.Contains(said, tc.said) || (said == "") != (tc.said == "") ||
			strings.Join(f.Repaired, "; ") != tc.made || len(f.NotOurs) > 0 {
			t.Errorf("%s: %+v", tc.answer, f)
		}
		planned := slices.ContainsFunc(f.Plan, func(p restore.Planned) bool { return strings.Contains(fmt.Sprint(p), "their rule") })
		if planned != tc.dry {
			t.Errorf("%s: the plan is %v", tc.answer, f.Plan)
		}
	}
	if f := s.run(&repair.Repairer{}).Findings[0]; len(f.NotOurs) != 1 || f.State != repair.InOrder {
		t.Errorf("without a way to ask: %+v", f)
	}
	if err := s.Del(bounded(t), a.list, a.Attachment); err != nil {
		t.Fatal(err)
	}
}

// An attachment whose configuration is unknown, or whose DEL is not finished, is said to be broken. One whose network has
// changed keeps what it was made with.
func TestOddAttachments(t *testing.T) {
	s := newSite(t)
	a := s.add(s.network("lan", "10.9.0.0/24"), "a", "8080:80")
	nstest.Run(t, "nft", "flush", "ruleset")
	all, problems := s.List("lan")
	if len(all) != 1 || len(problems) > 0 {
		t.Fatal(all, problems)
	}
	of := func(change func(*attach.Cached)) repair.Finding {
		t.Helper()
		c := all[0]
		change(&c)
		r := &repair.Repairer{DryRun: true, List: func() ([]attach.Cached, []error) { return []attach.Cached{c}, nil }}
		return s.run(r).Findings[0]
	}
	for want, change := range map[string]func(*attach.Cached){
		"no configuration":                   func(c *attach.Cached) { c.Bare = true },
		"portmap failed after the interface": func(c *attach.Cached) { c.Left = []string{"portmap"} },
		"the configuration in the cache":     func(c *attach.Cached) { c.Config = []byte("{") },
	} {
		f := of(change)
		if said := strings.Join(f.Differences.Lines(), "; "); f.State != repair.Broken || !strings.Contains(said, want) {
			t.Errorf("%s: %s, %s", want, f.State, said)
		}
		if isUnfinished := strings.HasPrefix(want, "portmap"); isUnfinished != slices.Equal(f.Left, []string{"portmap"}) {
			t.Errorf("%s: plugins that failed are %q", want, f.Left)
		}
	}

	same, other, third := s.list(string(all[0].Config)), s.network("lan", "10.8.0.0/24"), s.network("other", "10.7.0.0/24")
	for _, now := range [][]*spec.List{nil, {third}, {third, same}, {third, other}} {
		f := s.run(&repair.Repairer{DryRun: true, Now: func() []*spec.List { return now }}).Findings[0]
		if f.State != repair.ToRepair || f.Changed != (len(now) == 2 && now[1] == other) {
			t.Errorf("now %v: %s, changed %v", now, f.State, f.Changed)
		}
	}
	s.repair()
	s.whole("repaired", a)
}

// A file that cannot be read is a problem of its network, and may be an attachment. Without any knowledge of the
// attachments nothing is repaired.
func TestUnreadAttachments(t *testing.T) {
	s := newSite(t)
	unread := func(file string, aside bool) error {
		return &attach.Unread{File: "/x/" + file, Err: errors.New(file + " is torn"), Aside: aside}
	}
	problems := []error{unread("lan-a-eth0", false), unread("wan-a-eth0", false), errors.New("a pipe"), unread("lan-b-eth0", true)}
	list := func() ([]attach.Cached, []error) { return nil, problems }
	for network, want := range map[string]string{"lan": "lan-a-eth0 is torn; a pipe", "": "lan-a-eth0 is torn; wan-a-eth0 is torn; a pipe"} {
		report := s.run(&repair.Repairer{Network: network, List: list})
		if got := strings.Join(report.Problems, "; "); got != want || report.Unread != strings.Count(want, "torn") || report.OK() {
			t.Errorf("of %q: %q, %d unread", network, got, report.Unread)
		}
	}
	problems = append(problems, fmt.Errorf("x: %w", attach.ErrUnseen))
	r := &repair.Repairer{List: list, Runtime: s.Runtime, Plugins: plugin.All()}
	if _, err := r.Run(bounded(t)); !errors.Is(err, attach.ErrUnseen) {
		t.Errorf("without any knowledge: %v", err)
	}
}

// A repair of any sort leaves no file open. If it cannot open what it needs, it says so.
func TestOpenFiles(t *testing.T) {
	s := newSite(t)
	a := s.add(s.network("lan", "10.9.0.0/24"), "a", "8080:80")
	c, _ := s.List("lan")
	bridge := slices.IndexFunc(plugin.All(), func(p sdk.Plugin) bool { return p.Name == "bridge" })
	stopped, stop := context.WithCancel(t.Context())
	stop()
	for what, do := range map[string]func() error{
		"repair": func() error {
			_, err := (&repair.Repairer{Runtime: s.Runtime, Plugins: plugin.All()}).Run(bounded(t))
			return err
		},
		"shut": func() error { _, err := repair.Shut(bounded(t)); return err },
		"handover": func() error {
			_, err := (&repair.Repairer{Runtime: s.Runtime, Plugins: plugin.All(), DryRun: true}).HandOver(bounded(t), "nftables")
			return err
		},
		"watch": func() error {
			err := (&repair.Repairer{Runtime: s.Runtime, Plugins: plugin.All()}).Watch(stopped, func(*repair.Report, error) {})
			if errors.Is(err, context.Canceled) {
				return nil
			}
			return err
		},
		"whose it is": func() error { _, err := repair.Ownership(&c[0], plugin.All()[bridge]); return err },
	} {
		if err := do(); err != nil { // which may keep a file for the next one
			t.Errorf("%s: %v", what, err)
		}
		before := openFiles(t)
		if err := do(); err != nil || openFiles(t) != before {
			t.Errorf("%s: %v, and %d files are open, %d before", what, err, openFiles(t), before)
		}
		var was unix.Rlimit
		none := unix.Rlimit{Cur: 3}
		if err := errors.Join(unix.Getrlimit(unix.RLIMIT_NOFILE, &was), set(&none, was.Max)); err != nil {
			t.Fatal(err)
		}
		err := do()
		if back := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); back != nil {
			t.Fatal(back)
		}
		if !errors.Is(err, unix.EMFILE) {
			t.Errorf("%s without files: %v", what, err)
		}
	}
	s.repair()
	s.whole("repaired", a)
}

func set(limit *unix.Rlimit, most uint64) error {
	limit.Max = most
	return unix.Setrlimit(unix.RLIMIT_NOFILE, limit)
}

// openFiles is how many files this process has open.
func openFiles(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// An attachment carries no traffic if a link of it is missing or down, or has left its bridge.
func TestLinks(t *testing.T) {
	s := newSite(t)
	a := s.add(s.network("lan", "10.9.0.0/24"), "a")
	all, _ := s.List("lan")
	c := &all[0]
	veth := c.Result.Interfaces[1].Name
	look := func(want ...string) {
		t.Helper()
		w, err := restore.OpenHost()
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		if w.Container, err = kernel.Open(a.Netns); err != nil {
			t.Fatal(err)
		}
		host, off := repair.Links(w, c)
		var got []string
		for _, d := range off {
			got = append(got, d.Field+" "+d.Link+d.Want+d.Got)
		}
		present := 2
		if slices.Contains(want, "link "+veth+"absent") {
			present = 1
		}
		if !slices.Equal(got, want) || len(host) != present || host[0].Name != "lan" {
			t.Errorf("%q, and %d on the host, want %q", got, len(host), want)
		}
	}
	look()
	nstest.Run(t, "ip", "link", "set", veth, "nomaster")
	look("master " + veth + "lan")
	nstest.Run(t, "ip", "link", "set", veth, "down")
	look("state " + veth + "updown")
	nstest.Run(t, "ip", "link", "set", "lan", "down")
	look("state lanupdown", "state "+veth+"updown")
	nstest.Run(t, "ip", "link", "set", "lan", "up")
	nstest.Run(t, "ip", "link", "del", veth)
	look("link "+veth+"absent", "link eth0absent")
	if host, off := repair.Links(nil, &attach.Cached{}); host != nil || off != nil {
		t.Errorf("without a result: %v, %v", host, off)
	}
}

// After a handover, a repair by the same caller leaves what was handed over alone. What cannot be read is told, and without
// any knowledge of the attachments there is no handover.
func TestAfterHandOver(t *testing.T) {
	s := newSite(t)
	s.add(s.network("lan", "10.9.0.0/24"), "a", "8080:80")
	r := &repair.Repairer{Runtime: s.Runtime, Plugins: plugin.All(), Firewall: true}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if _, err := r.HandOver(stopped, "iptables"); !errors.Is(err, context.Canceled) {
		t.Errorf("without its caller: %v", err)
	}
	all, problems := s.List("lan")
	if len(all) != 1 || len(problems) > 0 {
		t.Fatal(all, problems)
	}
	torn := filepath.Join(filepath.Dir(all[0].File), "lan-b-eth0")
	if err := os.WriteFile(torn, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	report, err := r.HandOver(bounded(t), "iptables")
	if err != nil || states(report) != "lan/a/eth0 handed over" || len(report.Problems) != 1 || !strings.Contains(report.Problems[0], torn) {
		t.Errorf("%s, %q, %v", states(report), report.Problems, err)
	}
	if report, err = r.Run(bounded(t)); err != nil || states(report) != "lan/a/eth0 handed over" {
		t.Errorf("a repair: %s, %v", states(report), err)
	}
	results := filepath.Dir(torn)
	if err := errors.Join(os.Rename(results, results+".old"), os.WriteFile(results, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.HandOver(bounded(t), "iptables"); !errors.Is(err, attach.ErrUnseen) {
		t.Errorf("of unknown attachments: %v", err)
	}
}

// Of an attachment without a record, as an earlier version made them, the mark of its link says whose it is.
func TestOwnershipByMark(t *testing.T) {
	s := newSite(t)
	s.add(s.network("lan", "10.9.0.0/24"), "a")
	c, _ := s.List("lan")
	host, err := restore.OpenHost()
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	if err := host.Store.Delete(resource.MadeRecord, c[0].Owner()); err != nil {
		t.Fatal(err)
	}
	bridge := slices.IndexFunc(plugin.All(), func(p sdk.Plugin) bool { return p.Name == "bridge" })
	before := openFiles(t)
	if got, err := repair.Ownership(&c[0], plugin.All()[bridge]); got != "" || err != nil {
		t.Errorf("%q, %v: want that it is ours", got, err)
	}
	if now := openFiles(t); now != before {
		t.Errorf("%d files are open, %d before", now, before)
	}
	nstest.Run(t, "ip", "link", "set", strings.Fields(nstest.Run(t, "sh", "-c", "ls /sys/class/net | grep veth"))[0], "alias", "theirs")
	if got, err := repair.Ownership(&c[0], plugin.All()[bridge]); got != repair.Foreign || err != nil {
		t.Errorf("%q, %v: want that it is another program's", got, err)
	}
}

// An attachment whose address another container has is no finding if a DEL ended meanwhile, which gave it back.
func TestDeletedMeanwhile(t *testing.T) {
	s := newSite(t)
	s.add(s.network("lan", "10.9.0.0/24"), "a")
	stale, problems := s.List("lan")
	addr := stale[0].Result.IPs[0].Address.Addr().String()
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	lease := filepath.Join("/var/lib/cni/networks/lan", addr)
	if err := errors.Join(os.Remove(stale[0].File), os.WriteFile(lease, []byte("b\r\neth0"), 0o600)); err != nil {
		t.Fatal(err)
	}
	report := s.run(&repair.Repairer{List: func() ([]attach.Cached, []error) { return stale, nil }})
	if got := states(report); got != "lan/a/eth0 busy" || report.Findings[0].Held {
		t.Errorf("%s: %+v", got, report.Findings)
	}
}
