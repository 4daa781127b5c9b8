package repair_test

import (
	"bytes"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/internal/repair"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/spec"
)

func (s *site) handOver(r *repair.Repairer) *repair.Report {
	s.Helper()
	r.Runtime, r.Plugins, r.Firewall = s.Runtime, plugin.All(), true
	report, err := r.HandOver(bounded(s), "iptables")
	if err != nil {
		s.Fatalf("handover: %v", err)
	}
	return report
}

// closedRules are the routing rules and routes of closed networks, as ip(8) shows them.
func closedRules(t testing.TB) string {
	return nstest.Run(t, "sh", "-c",
		"for f in 4 6; do ip -$f rule; ip -$f route show table 64250 2>/dev/null || true; done | grep 'proto 250\\|prohibit' || true")
}

// A handover leaves nothing of a network that decides about packets: its published ports are answered also when
// somebody deletes our tables afterwards, as the migration guide says. Neither a repair nor one that watches undoes
// it, until something is attached anew.
func TestHandOver(t *testing.T) {
	s := newSite(t)
	policy := func(p string) string { return `{"type":"firewall","ingressPolicy":"` + p + `"}` }
	open, strict, isolated := s.network("open", "10.9.1.0/24"), s.network("strict", "10.9.2.0/24",
		policy("strict")), s.network("isolated", "10.9.3.0/24", policy("isolated"))
	s.add(open, "a", "8081:80")
	b := s.add(strict, "b", "8082:80")
	s.add(isolated, "c", "8083:80")
	neighbour := s.neighbour()
	visits := s.visit(neighbour, "192.0.2.1:8082", b.Netns, 80)
	visits.gap(t, "at first")
	if !strings.Contains(closedRules(t), "10.9.2.0/24") {
		t.Fatal("the strict network has no routing rules: this test tries nothing")
	}

	// One network of three: what the others have stays.
	s.handOver(&repair.Repairer{Network: "isolated"})
	if rules := closedRules(t); strings.Contains(rules, "10.9.3.0/24") || !strings.Contains(rules, "10.9.2.0/24") {
		t.Errorf("routing rules after one network was handed over:\n%s", rules)
	}
	reports, stop := s.watch()
	<-reports
	got := s.handOver(&repair.Repairer{DryRun: true})
	if want := "isolated/c/eth0 handed over before; open/a/eth0 to be handed over; strict/b/eth0 to be handed over"; states(got) != want {
		t.Errorf("dry run: %s, want %s", states(got), want)
	}
	got = s.handOver(&repair.Repairer{})
	if want := "isolated/c/eth0 handed over before; open/a/eth0 handed over; strict/b/eth0 handed over"; states(got) != want {
		t.Errorf("%s, want %s", states(got), want)
	}
	if lost := lostOf(got, "b"); !strings.Contains(lost,
		"firewall: ingressPolicy strict: the reference's DEL fails because of it") || !strings.Contains(lost, "ip rules") {
		t.Errorf("lost of a strict network: %s", lost)
	}
	nothing := func(when string) {
		t.Helper()
		if rules := closedRules(t); rules != "" {
			t.Errorf("%s: %s", when, rules)
		}
		if tables := nstest.Run(t, "sh", "-c",
			"nft list ruleset 2>/dev/null | grep -E '[0-9a-f]{12} [0-9a-f]{16} ' || true"); tables != "" {
			t.Errorf("%s: elements are left: %s", when, tables)
		}
	}
	nothing("after the handover")
	if did, err := repair.Shut(bounded(t)); err != nil || len(did) > 0 {
		t.Errorf("shut what is not ours any more: %q, %v", did, err)
	}
	got = s.handOver(&repair.Repairer{})
	if want := "isolated/c/eth0 handed over before; open/a/eth0 handed over before; strict/b/eth0 handed over before"; states(got) != want {
		t.Errorf("again: %s, want %s", states(got), want)
	}
	nstest.Run(t, "nft", "delete table inet fairlead; delete table bridge fairlead")
	visits.gap(t, "after the handover")
	stop()
	for range len(reports) {
		<-reports
	}
	for _, r := range []*repair.Repairer{{Firewall: true}, {}, {DryRun: true}} {
		report := s.run(r)
		if want := "isolated/c/eth0 handed over; open/a/eth0 handed over; strict/b/eth0 handed over"; states(report) != want ||
			!report.OK() {
			t.Errorf("repair: %s %v, want %s", states(report), report.Problems, want)
		}
	}
	nothing("after a repair")
	if tables := nstest.Run(t, "nft", "list", "tables"); strings.Contains(tables, "fairlead") {
		t.Errorf("repair has made the tables again:\n%s", tables)
	}

	// What is attached anew is ours, and repaired.
	if err := s.Del(bounded(t), strict, b.Attachment); err != nil {
		t.Fatal(err)
	}
	b = s.addTo(strict, "b", b.Netns, "8082:80")
	nstest.Run(t, "nft", "delete table inet fairlead")
	if got, want := states(s.repair()), "isolated/c/eth0 handed over; open/a/eth0 handed over; strict/b/eth0 repaired"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	s.whole("attached anew", b)
}

func lostOf(r *repair.Report, id string) string {
	for _, f := range r.Findings {
		if f.Owner.ContainerID == id {
			return strings.Join(f.Lost, "\n")
		}
	}
	return ""
}

// For what the reference's DEL will refuse a handover says what to do.
func TestHandOverRefused(t *testing.T) {
	for _, x := range []struct{ plugin, want string }{
		{`{"type":"firewall","ingressPolicy":"isolated"}`, "isolated: the reference's DEL fails because of it before version 1.7"},
		{`{"type":"bandwidth","ingressRate":8000000}`, "ingressRate or ingressBurst is missing"},
		{`{"type":"bandwidth","egressRate":8000000}`, "egressRate or egressBurst is missing"},
		{`{"type":"bandwidth","egressRate":8000000,"egressBurst":8000000}`, ""},
		{`{"type":"firewall","ingressPolicy":"same-bridge"}`, ""},
	} {
		s := newSite(t)
		s.add(s.network("lan", "10.9.1.0/24", x.plugin), "a")
		lost := lostOf(s.handOver(&repair.Repairer{DryRun: true}), "a")
		if x.want == "" && lost != "" || !strings.Contains(lost, x.want) {
			t.Errorf("%s: lost %q, want %q", x.plugin, lost, x.want)
		}
	}
}

// Attachments of the reference's are its own, also where our files have taken its place since: rules of ours beside
// its own nobody would ever miss.
func TestRepairLeavesOthers(t *testing.T) {
	s := newSite(t)
	dir := "/usr/lib/cni"
	nstest.NeedProgram(t, dir+"/bridge")
	ours := s.PluginDirs
	s.PluginDirs = []string{dir}
	s.add(s.list(`{"cniVersion":"1.0.0","name":"lan","plugins":[
		{"type":"bridge","bridge":"lan","isGateway":true,"ipMasq":true,"ipam":{"type":"host-local","subnet":"10.9.1.0/24"}},
		{"type":"portmap","capabilities":{"portMappings":true}},{"type":"firewall"}]}`), "a", "8081:80")
	s.PluginDirs = ours
	none := func(*spec.List, string) string { return "" }
	for _, r := range []*repair.Repairer{{DryRun: true}, {}, {Firewall: true}} {
		r.Foreign = none
		report := s.run(r)
		if states(report) != "lan/a/eth0 foreign" || !report.OK() || len(report.Findings[0].NotOurs) != 3 {
			t.Errorf("%s: %+v", states(report), report.Findings)
		}
	}
	if rules := nstest.Run(t, "nft", "list", "ruleset"); strings.Contains(rules, "table inet fairlead") {
		t.Errorf("repair has made tables for nobody:\n%s", rules)
	}

	nstest.Run(t, "iptables", "-t", "nat", "-F")
	report := s.run(&repair.Repairer{Foreign: none})
	lost := strings.Join(report.Findings[0].Differences.Lines(), "\n")
	if states(report) != "lan/a/eth0 offline" || !strings.Contains(lost, "10.9.1.2") || !strings.Contains(lost, "8081") {
		t.Errorf("without the rules of another program: %s:\n%s", states(report), lost)
	}
}

// Where another program made the link and ours published a port, that is ours to repair.
func TestRepairOursBesideOthers(t *testing.T) {
	s := newSite(t)
	const theirs = "/usr/lib/cni/bridge"
	nstest.NeedProgram(t, theirs)
	dir := t.TempDir()
	if err := os.Symlink(theirs, filepath.Join(dir, "bridge")); err != nil {
		t.Fatal(err)
	}
	s.PluginDirs = append([]string{dir}, s.PluginDirs...)
	s.add(s.list(`{"cniVersion":"1.0.0","name":"lan","plugins":[
		{"type":"bridge","bridge":"lan","isGateway":true,"ipam":{"type":"host-local","subnet":"10.9.1.0/24"}},
		{"type":"portmap","capabilities":{"portMappings":true}}]}`), "a", "8081:80")
	foreign := func(_ *spec.List, plugin string) string {
		if plugin == "bridge" {
			return theirs
		}
		return ""
	}
	nstest.Run(t, "nft", "flush", "ruleset")
	report := s.run(&repair.Repairer{Foreign: foreign})
	if states(report) != "lan/a/eth0 repaired" || len(report.Findings[0].NotOurs) != 1 {
		t.Errorf("%s: %+v", states(report), report.Findings)
	}
	if rules := nstest.Run(t, "nft", "list", "ruleset"); !strings.Contains(rules, "8081") {
		t.Errorf("the port is not published again:\n%s", rules)
	}
	if got := states(s.handOver(&repair.Repairer{Foreign: foreign})); got != "lan/a/eth0 in order" {
		t.Errorf("what is not ours alone is handed over: %s", got)
	}
}

// A process that listens on a published port, as podman does on all of its ports, is said when the port is published
// first, and not by each repair.
func TestRepairQuiet(t *testing.T) {
	s := newSite(t)
	s.add(s.network("lan", "10.9.1.0/24"), "a", "8081:80")
	l, err := net.Listen("tcp4", "0.0.0.0:8081")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var said bytes.Buffer
	was := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&said, nil)))
	defer slog.SetDefault(was)
	nstest.Run(t, "nft", "flush", "ruleset")
	if got := states(s.repair()); got != "lan/a/eth0 repaired" {
		t.Error(got)
	}
	if said.Len() > 0 {
		t.Errorf("a repair says: %s", said.String())
	}
}

// CHECK names an element that is too much once.
func TestPolicyTooMuch(t *testing.T) {
	s := newSite(t)
	a := s.add(s.network("lan", "10.9.1.0/24", `{"type":"firewall","ingressPolicy":"strict"}`), "a")
	err := s.Check(bounded(t), s.network("lan", "10.9.1.0/24", `{"type":"firewall"}`), a.Attachment)
	if err == nil || strings.Count(err.Error(), "policed { lan } is too much") != 1 {
		t.Errorf("check with another policy: %v", err)
	}
}
