package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// TestMain lets the test program be a worker, as bench itself is.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args, "-worker") {
		main()
		return
	}
	os.Exit(m.Run())
}

// The harness carries a container through its life on both sides, here the reference's plugins on both.
// What comes out is not looked at but for being there: no test depends on time.
func TestMeasure(t *testing.T) {
	o := options{plugins: "/usr/lib/cni", reference: "/usr/lib/cni", rounds: 2}
	for _, c := range cases() {
		if c.Ports {
			continue // the reference would want iptables
		}
		of := "attachments"
		if c.ByLease {
			of = "leases"
		}
		t.Run(c.Name, func(t *testing.T) {
			lines, err := measure(o, c, []load{{2, of}})
			if err != nil && c.Virtual {
				nstest.Skip(t, err)
			}
			if err != nil || len(lines) != len(verbs()) {
				t.Fatalf("%d lines, %v", len(lines), err)
			}
			for _, l := range lines {
				for _, name := range []string{ours, reference} {
					if s := l.By[name]; s.N != 2 || s.Min <= 0 || s.Memory <= 0 {
						t.Errorf("%s, %s: %+v", l.Verb, name, s)
					}
				}
			}
		})
	}
}

func TestSummarise(t *testing.T) {
	s := summarise([]cost{{Time: 9e9, Memory: 9}, {Time: 5e6}, {Time: 1e6}, {Time: 900e6}})
	if s.Median != 5e6 || s.Min != 1e6 || s.Max != 900e6 || s.N != 3 || s.Memory != 9 {
		t.Errorf("summary %+v", s)
	}
	if got := s.String(); got != "5.00 [1.00..900]" {
		t.Errorf("summary is written %q", got)
	}
	if r := ratio(s.Median, 0); r != 0 {
		t.Errorf("ratio to nothing is %v", r)
	}
}

// sides are the medians of ours and the reference.
func sides(our, theirs time.Duration) map[string]summary {
	return map[string]summary{ours: {Median: our}, reference: {Median: theirs}}
}

// A CHECK that fails is shown as failed, not as fast.
func TestReport(t *testing.T) {
	l := line{Case: "c", Present: load{3, "leases"}, Verb: "CHECK", By: sides(1, 12),
		Fails: []string{"the reference fails"}}
	text := string(report{Lines: []line{l, l}}.text())
	if strings.Contains(text, "12.0") || strings.Count(text, "the reference fails") != 1 ||
		!strings.Contains(text, "3 leases") {
		t.Errorf("report:\n%s", text)
	}
}

// What the measuring program says meanwhile stands before its figures where both have one console.
func TestRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bench.json")
	for text, want := range map[string]string{
		"{\n \"Machine\": {\"Go\": \"go1\"}}\n":                 "",
		"vlan {0}: done\n{\n \"Machine\": {\"Go\": \"go1\"}}\n": "",
		"bench: no such plugin\n":                               "no line begins with {",
		"":                                                      "no line begins with {",
		"{ half":                                                "invalid character",
	} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		rep, err := read(file)
		if want == "" && (err != nil || rep.Machine.Go != "go1") || want != "" &&
			(err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q is %+v, %v", text, rep.Machine, err)
		}
	}
}

// A run writes its own section of the page and leaves the other's.
func TestPage(t *testing.T) {
	at := func(virtual bool, name string) report {
		return report{Machine: machine{Virtual: virtual}, Lines: []line{{Case: name, Verb: "ADD"}}}
	}
	old := page(nil, at(false, "chain-a"))
	newer := at(false, "chain-d")
	newer.Machine.Newest = true
	both := page(page(old, at(true, "chain-b")), newer)
	again := string(page(both, at(false, "chain-c")))
	if s := string(old); !strings.Contains(s, "chain-a") || strings.Contains(s, virtual) {
		t.Errorf("here alone:\n%s", s)
	}
	if s := string(both); !strings.Contains(s, "chain-a") || !strings.Contains(s, "chain-b") ||
		!strings.Contains(s, "chain-d") || !strings.Contains(s, newest) || !bytes.HasPrefix(both, old) {
		t.Errorf("both:\n%s", s)
	}
	if strings.Contains(again, "chain-a") || !strings.Contains(again, "chain-b") || !strings.Contains(again, "chain-c") ||
		!strings.Contains(again, "chain-d") ||
		strings.Count(again, intro) != 1 {
		t.Errorf("again:\n%s", again)
	}
}

func TestGrowth(t *testing.T) {
	at := func(present int, verb string, our, theirs time.Duration) line {
		return line{Case: "bridge + host-local", Present: load{present, "attachments"}, Verb: verb, By: sides(our, theirs)}
	}
	r := report{Lines: []line{at(0, "ADD", 2, 8), at(0, "DEL", 3, 3), at(1000, "ADD", 3, 40), at(1000, "DEL", 3, 3)}}
	_, rows := r.growth()
	if len(rows) != 2 || rows[0][4] != "1.5 times as long" || rows[0][5] != "5.0 times as long" {
		t.Errorf("growth: %q", rows)
	}
	_, rows = r.expectations()
	if len(rows) != 2 || rows[0][4] != "4.0" {
		t.Errorf("expectations: %q", rows)
	}
	r.Lines[0].By = sides(2, 5)
	if _, rows = r.expectations(); rows[0][4] != "2.5, missed" {
		t.Errorf("a missed expectation reads %q", rows)
	}
}

// Both sides get one and the same configuration, with what a runtime adds to it.
func TestConf(t *testing.T) {
	for _, c := range cases() {
		last := len(c.Plugins) - 1
		if i := slices.IndexFunc(c.Plugins, func(p map[string]any) bool { return p["type"] == "portmap" }); i >= 0 {
			last = i
		}
		b, err := c.conf(last, 7, json.RawMessage(`{"ips":[]}`))
		if err != nil {
			t.Fatal(err)
		}
		var conf struct {
			CNIVersion, Name, Type string
			PrevResult             json.RawMessage
			RuntimeConfig          struct {
				PortMappings []struct{ HostPort int }
			}
		}
		if err := json.Unmarshal(b, &conf); err != nil {
			t.Fatal(err)
		}
		if conf.CNIVersion != cniVersion || conf.Name != "bench" || conf.Type == "" || string(conf.PrevResult) != `{"ips":[]}` {
			t.Errorf("%s: %s", c.Name, b)
		}
		if ports := conf.RuntimeConfig.PortMappings; c.Ports != (len(ports) == 2) || c.Ports && ports[0].HostPort != 20014 {
			t.Errorf("%s: ports %v", c.Name, ports)
		}
	}
}

// A burst attaches and detaches all of its containers on both sides, and says how many it could not.
func TestBurst(t *testing.T) {
	o := options{plugins: "/usr/lib/cni", reference: "/usr/lib/cni", burst: 3, parallel: []int{2}}
	lines, err := measureBursts(o, cases()[1])
	if err != nil {
		t.Fatal(err)
	}
	if len(lines) != 1 || len(lines[0].By) != 2 {
		t.Fatalf("burst %+v", lines)
	}
	for name, r := range lines[0].By {
		if r.Failed != 0 || r.Add <= 0 || r.Del <= 0 {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if _, rows := (report{Bursts: lines}).burstRows(); len(rows) != 2 || rows[0][3] != "ADD" || rows[1][3] != "DEL" {
		t.Errorf("rows %q", rows)
	}
}

// A cloned attachment has rules with names, an address and ports of its own, before those of the others in chains that
// they share, and the text of a hash is not taken for a port.
func TestClone(t *testing.T) {
	var rules []ruleLine
	for _, text := range []string{":CNI-DN-0123456789ab22002ef01 - [0:0]",
		`-A CNI-DN-0123456789ab22002ef01 -s 10.23.0.0/16 -p tcp -m tcp --dport 22002 -j DNAT --to-destination 10.23.0.3:80`,
		`-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "id: \"present-1\"" -m multiport --dports 22002,22003 ` +
			`-j CNI-DN-0123456789ab22002ef01`,
	} {
		rules = append(rules, ruleLine{"iptables", "*nat", text})
	}
	p := newPattern(attachment{id: "present-1", number: 1001}, "10.23.0.3", rules)
	p.clone(attachment{id: "present-7", number: 1007}, "10.23.0.9")
	var got bytes.Buffer
	writeTables(&got, p.more["iptables"])
	want := `*nat
:CNI-DN-0123456789ab2000003ef - [0:0]
-A CNI-DN-0123456789ab2000003ef -s 10.23.0.0/16 -p tcp -m tcp --dport 22014 -j DNAT --to-destination 10.23.0.9:80
-I CNI-HOSTPORT-DNAT -p tcp -m comment --comment "id: \"present-7\"" -m multiport --dports 22014,22015 -j CNI-DN-0123456789ab2000003ef
COMMIT
`
	if got.String() != want {
		t.Errorf("cloned\n%s, want\n%s", got.String(), want)
	}
}
