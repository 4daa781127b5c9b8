package repair_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/internal/repair"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/spec"
)

// elements is what stands in our tables, in an order of its own.
func elements(t testing.TB) string {
	t.Helper()
	var all []string
	for line := range strings.Lines(nstest.Run(t, "nft", "list", "ruleset")) {
		for e := range strings.SplitSeq(line, ",") {
			if e = strings.TrimPrefix(strings.Trim(e, "\t\n {}"), "elements = { "); e != "" {
				all = append(all, e)
			}
		}
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// Everything is as it was, whatever was taken.
//
// clause: P14 P15
func TestRepairFirewall(t *testing.T) {
	s := newSite(t)
	red := s.network("red", "10.9.1.0/24", `{"type":"firewall","ingressPolicy":"strict"}`)
	lan := s.network("lan", "10.9.0.0/24")
	all := []*box{s.add(red, "a", "8080:80"), s.add(lan, "b", "127.0.0.1:8081:80", "8082:80"), s.udp(lan, "c", "53:53"),
		s.add(lan, "d")}
	before := elements(t)
	for _, d := range append(disturbances(),
		disturbance{"nothing", func(*testing.T) {}},
		disturbance{"a set", func(t *testing.T) {
			nstest.Run(t, "nft", "flush", "map", "inet", "fairlead",
				"publish_ip_any")
		}},
		disturbance{"what leads to a network's rules",
			func(t *testing.T) { nstest.Run(t, "nft", "flush", "chain", "inet", "fairlead", "hairpin") }},
		disturbance{"a network's rules", func(t *testing.T) {
			chain := strings.Fields(nstest.Run(t, "sh", "-c", "nft list chains inet | grep masquerade_"))[1]
			nstest.Run(t, "nft", "flush", "chain", "inet", "fairlead", chain)
			nstest.Run(t, "nft", "add", "rule", "inet", "fairlead", chain, "drop")
		}},
		disturbance{"a rule too many", func(t *testing.T) {
			nstest.Run(t, "nft", "insert", "rule", "inet", "fairlead",
				"forward", "accept")
		}},
		disturbance{"a rule that guards", func(t *testing.T) {
			nstest.Run(t, "nft", "flush", "chain", "inet", "fairlead",
				"guard")
		}},
		disturbance{"route_localnet", func(t *testing.T) {
			nstest.Run(t, "sysctl", "-qw",
				"net.ipv4.conf.lan.route_localnet=0")
		}},
		disturbance{"bookkeeping", func(t *testing.T) {
			nstest.Run(t, "nft", "flush", "set", "inet", "fairlead",
				"owners")
		}},
	) {
		t.Run(d.name, func(t *testing.T) {
			d.do(t)
			r := s.repair()
			if !r.OK() {
				t.Errorf("%v %+v", r.Problems, r.Findings)
			}
			s.whole("repaired", all...)
			if after := elements(t); after != before {
				t.Errorf("there is\n%s\nwant\n%s", after, before)
			}
			again := s.repair()
			if again.OK() && len(again.Guard) > 0 || strings.Contains(states(again), string(repair.Repaired)) {
				t.Errorf("a second repair found something to do: %v, %s", again.Guard, states(again))
			}
		})
	}
}

// Without --firewall the host's part of attachments is made whole, and what is wrong in a container is said.
func TestRepairHost(t *testing.T) {
	s := newSite(t)
	lan := s.network("lan", "10.9.0.0/24")
	a, b := s.add(lan, "a", "8080:80"), s.add(lan, "b")
	for _, d := range []disturbance{
		{"forwarding", func(t *testing.T) { nstest.Run(t, "sysctl", "-qw", "net.ipv4.ip_forward=0") }},
		{"the gateway's address", func(t *testing.T) { nstest.Run(t, "ip", "addr", "flush", "dev", "lan") }},
		{"a port", func(t *testing.T) {
			nstest.Run(t, "sh", "-c", "ip link set $(ip -br link show master lan | cut -d@ -f1 | head -1) nomaster")
		}},
		{"the bridge", func(t *testing.T) { nstest.Run(t, "ip", "link", "del", "lan") }},
		{"a link down", func(t *testing.T) {
			nstest.Run(t, "sh", "-c", "ip link set $(ip -br link show master lan | cut -d@ -f1 | head -1) down")
		}},
		{"all rules", func(t *testing.T) { nstest.Run(t, "nft", "flush", "ruleset") }},
	} {
		t.Run(d.name, func(t *testing.T) {
			d.do(t)
			if r := s.run(&repair.Repairer{DryRun: true}); r.OK() {
				t.Errorf("a dry run finds nothing: %+v", r.Findings)
			}
			if r := s.run(&repair.Repairer{}); !r.OK() || !strings.Contains(states(r), string(repair.Repaired)) {
				t.Errorf("%v %+v", r.Problems, r.Findings)
			}
			s.whole("repaired", a, b)
			if r := s.run(&repair.Repairer{}); states(r) != "lan/a/eth0 in order; lan/b/eth0 in order" {
				t.Errorf("a second repair: %s", states(r))
			}
		})
	}
	nstest.RunIn(t, a.Netns, "ip", "addr", "flush", "dev", "eth0")
	r := s.run(&repair.Repairer{})
	if got := states(r); got != "lan/a/eth0 broken; lan/b/eth0 in order" ||
		!strings.Contains(fmt.Sprint(r.Findings[0].Differences), "addr cont/eth0 10.9.0.2/24: is missing") {
		t.Errorf("%s: %v", got, r.Findings[0].Differences)
	}
}

// What has no container any more is left to GC, and said; so is what nobody can repair.
func TestRepairPassesOver(t *testing.T) {
	s := newSite(t)
	lan := s.network("lan", "10.9.0.0/24")
	s.add(lan, "alive", "8080:80")
	gone, taken, other := s.add(lan, "gone", "8081:80"), s.add(lan, "taken", "8082:80"), s.add(lan, "other", "8083:80")
	if err := nstest.RemoveNS(gone.Netns); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("/var/lib/cni/networks/lan/"+taken.ip, []byte("somebody\r\neth0"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := nstest.RemoveNS(other.Netns); err != nil {
		t.Fatal(err)
	}
	if err := nstest.MakeNS(other.Netns); err != nil { // another one at its path
		t.Fatal(err)
	}
	nstest.Run(t, "nft", "flush", "ruleset")
	r := s.repair()
	// taken lives, and has no network
	if got := states(r); got != "lan/alive/eth0 repaired; lan/gone/eth0 gone; lan/other/eth0 gone; lan/taken/eth0 gone" ||
		r.OK() {
		t.Errorf("%s, %v", got, r.Problems)
	}
	for i, want := range map[int]string{1: "its network namespace " + gone.Netns + " is gone",
		3: "is held by somebody"} {
		if got := fmt.Sprint(r.Findings[i].Differences); !strings.Contains(got, want) {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if rules := elements(t); strings.Contains(rules, "8081") || strings.Contains(rules, "8082") ||
		strings.Contains(rules, "8083") || !strings.Contains(rules, "8080") {
		t.Errorf("there is\n%s", rules)
	}
}

// Several repairs at once, and ADDs and DELs meanwhile: everybody ends with what he should have.
//
// clause: P20
func TestRepairAtOnce(t *testing.T) {
	s := newSite(t)
	lan := s.network("lan", "10.9.0.0/16")
	var stay, go_ []*box
	for i := range 15 {
		stay = append(stay, s.add(lan, fmt.Sprint("stay", i), fmt.Sprint(8000+i, ":80")))
		go_ = append(go_, s.add(lan, fmt.Sprint("go", i), fmt.Sprint(9000+i, ":80")))
	}
	var paths []string
	for range 8 {
		paths = append(paths, nstest.NewNS(t))
	}
	nstest.Run(t, "nft", "flush", "ruleset")
	var group sync.WaitGroup
	for range 3 {
		group.Go(func() { s.repair() })
	}
	group.Go(func() {
		for _, b := range go_ {
			if err := s.Del(bounded(t), b.list, b.Attachment); err != nil {
				t.Error(err)
			}
		}
	})
	var mu sync.Mutex
	group.Go(func() {
		for i, path := range paths {
			b := s.addTo(lan, fmt.Sprint("new", i), path, fmt.Sprint(7000+i, ":80"))
			mu.Lock()
			stay = append(stay, b)
			mu.Unlock()
		}
	})
	group.Wait()
	s.whole("after all", stay...)
	if r := s.repair(); !r.OK() || strings.Contains(states(r), string(repair.Repaired)) {
		t.Errorf("something was left to do: %s", states(r))
	}
	if rules := elements(t); strings.Contains(rules, "/go") {
		t.Errorf("what was deleted is back:\n%s", rules)
	}
}

// A flush while a repair runs begins it again. The repair is kept at its last attachment until the flush.
func TestFlushWhileRepairing(t *testing.T) {
	s := newSite(t)
	lan := s.network("lan", "10.9.0.0/24")
	all := []*box{s.add(lan, "a", "8000:80"), s.add(lan, "b", "8001:80"), s.add(lan, "c", "8002:80")}
	s.meanwhile("c", func() bool {
		return strings.Contains(elements(t), "8000") && strings.Contains(elements(t), "8001")
	}, func() {
		nstest.Run(t, "nft", "flush", "ruleset")
	}, func(r *repair.Report) {
		if r.Rounds < 2 || !r.OK() {
			t.Errorf("%d rounds, %s", r.Rounds, states(r))
		}
	})
	s.whole("repaired", all...)
}

// A DEL by a runtime that knows nothing of our locks, while a repair runs, wins: nothing of the attachment is left.
//
// clause: P12
func TestDelWhileRepairing(t *testing.T) {
	s := newSite(t)
	lan := s.network("lan", "10.9.0.0/24")
	a, b := s.add(lan, "a", "8000:80"), s.add(lan, "b", "8001:80")
	s.meanwhile("b", func() bool { return strings.Contains(elements(t), "8000") }, func() {
		// portmap's DEL came before a's ports were restored, and the bridge's comes after.
		first := *lan
		first.Plugins = lan.Plugins[:1]
		s.pluginDel(&first, a)
	}, func(r *repair.Report) {
		if got := states(r); got != "lan/a/eth0 busy; lan/b/eth0 repaired" {
			t.Error(got)
		}
	})
	s.whole("repaired", b)
	if rules := elements(t); strings.Contains(rules, "lan/a/eth0") {
		t.Errorf("what was deleted is back:\n%s", rules)
	}
}

// meanwhile flushes, begins a repair that is kept at the attachment of one container until all others are done,
// then does something, and lets the repair end.
func (s *site) meanwhile(id string, done func() bool, do func(), then func(*repair.Report)) {
	s.Helper()
	nstest.Run(s, "nft", "flush", "ruleset")
	cached, problems := s.List("")
	if len(problems) > 0 {
		s.Fatal(problems)
	}
	i := slices.IndexFunc(cached, func(c attach.Cached) bool { return c.ContainerID == id })
	release, still, err := s.Hold(bounded(s), &cached[i])
	if err != nil || !still {
		s.Fatal(still, err)
	}
	// The repair has locks of its own, as another process would.
	other := &site{TB: s.TB, Runtime: &attach.Runtime{PluginDirs: s.PluginDirs}}
	reports := make(chan *repair.Report, 1)
	go func() { reports <- other.repair() }()
	ctx := bounded(s)
	for !done() {
		if ctx.Err() != nil {
			s.Fatal("the others are not repaired")
		}
	}
	do()
	release()
	then(<-reports)
}

// pluginDel runs DEL of a list's plugins as a runtime of the reference library would, without our locks.
func (s *site) pluginDel(l *spec.List, b *box) {
	s.Helper()
	for _, conf := range slices.Backward(l.Plugins) {
		o := conf.Object
		if o.Set("name", l.Name) != nil || o.Set("cniVersion", "1.1.0") != nil {
			s.Fatal("no configuration")
		}
		stdin, err := json.Marshal(o)
		if err != nil {
			s.Fatal(err)
		}
		cmd := exec.Command(filepath.Join(s.PluginDirs[0], conf.Type))
		cmd.Stdin = strings.NewReader(string(stdin))
		cmd.Env = append(os.Environ(), "CNI_COMMAND=DEL", "CNI_CONTAINERID="+b.ContainerID, "CNI_NETNS="+b.Netns,
			"CNI_IFNAME="+b.IfName, "CNI_PATH="+s.PluginDirs[0])
		if out, err := cmd.CombinedOutput(); err != nil {
			s.Fatalf("%v: %s", err, out)
		}
	}
}

const repairVar = "FAIRLEAD_TEST_REPAIR"

// repairHere is a repair in a process of its own: this test binary, when TestMain finds repairVar.
func repairHere() int {
	r := &repair.Repairer{Runtime: &attach.Runtime{}, Plugins: plugin.All(), Firewall: true}
	if report, err := r.Run(context.Background()); err != nil || !report.OK() {
		fmt.Fprintln(os.Stderr, err, report)
		return 1
	}
	return 0
}

// TestKillRepair kills a repair at each call that can change something: what lets packets in never stands without
// what guards it, and the next repair finishes.
func TestKillRepair(t *testing.T) {
	s := newSite(t)
	red := s.network("red", "10.9.1.0/24", `{"type":"firewall","ingressPolicy":"strict"}`)
	nstest.NeedProgram(t, "strace")
	all := []*box{s.add(red, "a", "127.0.0.1:8000:80"), s.add(red, "b", "8001:80")}
	before := elements(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	calls := "sendto,sendmsg,write,pwrite64,renameat,unlinkat,flock"
	last := nstest.Sample(t, 8, func(n int) (killed bool) {
		nstest.Run(t, "nft", "flush", "ruleset")
		cmd := exec.Command("strace", "-f", "-qqq", "-o", "/dev/null", "-e", "trace="+calls, "-e",
			fmt.Sprintf("inject=%s:signal=SIGKILL:when=%d", calls, n), exe)
		cmd.Env = append(os.Environ(), repairVar+"=1")
		err := cmd.Run()
		rules := elements(t)
		if strings.Contains(rules, "8000") && strings.Count(rules, `127.0.0.0/8 drop comment`) != 2 {
			t.Errorf("killed at call %d, ports are published and 127.0.0.0/8 is not guarded:\n%s", n, rules)
		}
		if err == nil {
			return false
		}
		s.repair()
		if after := elements(t); after != before {
			t.Fatalf("killed at call %d and repaired there is\n%s\nwant\n%s", n, after, before)
		}
		return true
	})
	if last == 0 {
		t.Error("no repair was killed")
	}
	s.whole("repaired", all...)
}

// Our tables are for rules: a repair makes none where nobody has any in them.
func TestRepairMakesNoTable(t *testing.T) {
	s := newSite(t)
	bare := s.list(`{"cniVersion":"1.1.0","name":"bare","plugins":[{"type":"bridge","bridge":"bare","ipam":{"type":"host-local","subnet":"10.9.2.0/24"}}]}`)
	b := s.add(bare, "a")
	for _, r := range []repair.Repairer{{}, {Firewall: true}} {
		if report := s.run(&r); !report.OK() || len(report.Guard) > 0 {
			t.Errorf("%+v", report)
		}
		if tables := nstest.Run(t, "nft", "list", "tables"); tables != "" {
			t.Errorf("there is %s", tables)
		}
	}
	s.whole("repaired", b)
	c := s.add(s.network("lan", "10.9.0.0/24"), "c", "8080:80")
	nstest.Run(t, "nft", "flush", "ruleset")
	if report := s.repair(); !report.OK() || len(report.Guard) == 0 {
		t.Errorf("%+v", report)
	}
	s.whole("repaired", b, c)
}
