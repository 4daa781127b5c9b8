package doctor

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/dhcp"
	"github.com/fairlead-cni/fairlead/spec"
)

// TestFindingKinds holds the table of findings against what doctor says, and each finding against a drill: of a kind that
// has a fix, a script executes it (fixes), and of one that has none a script asks for the advice (looks).
func TestFindingKinds(t *testing.T) {
	read := func(pattern string) (all string) {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: no files, %v", pattern, err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			all += string(b)
		}
		return all
	}
	var added string // the code of the examinations
	for _, m := range regexp.MustCompile(`(?s)\tid(, \w+)? :?= \w+|add(With)?\(\w+`).FindAllString(read("*.go"), -1) {
		added += m + "\n"
	}
	constants := map[ID]string{}
	for _, m := range regexp.MustCompile(`(\w+) +ID = "([a-z0-9-]+)"`).FindAllStringSubmatch(read("rows*.go"), -1) {
		constants[ID(m[2])] = m[1]
	}
	drills := read("../testdata/script/doctor*.txtar")
	// Only the machine's first network namespace shows the size of this table, and drills have one of their own.
	undrilled := []ID{NeighbourTableFull}
	var known []ID
	for _, k := range FindingKinds() {
		if slices.Contains(known, k.ID) {
			t.Errorf("%s is there twice", k.ID)
		}
		known = append(known, k.ID)
		if !regexp.MustCompile(`\b` + constants[k.ID] + `\b`).MatchString(added) {
			t.Errorf("%s is in the table, and no examination adds it", k.ID)
		}
		if k.What == "" || k.Fix+k.Look == "" || strings.HasSuffix(k.What, ".") || !strings.HasSuffix(k.Why, ".") {
			t.Errorf("%s: %q %q %q", k.ID, k.What, k.Why, k.Fix)
		}
		command := "fixes "
		if k.Fix == "" {
			command = "looks "
		}
		drilled := regexp.MustCompile(`[ ']` + command + string(k.ID) + `\b`).MatchString(drills)
		if drilled == slices.Contains(undrilled, k.ID) {
			t.Errorf("%s: \"exec %s\" in a script is %v, and the list of those without says otherwise", k.ID, command, drilled)
		}
	}
	for id := range constants {
		if !slices.Contains(known, id) {
			t.Errorf("%s has no row in the tables", id)
		}
	}
}

// TestConntrack is the drill of the table of connections, whose size belongs to the machine.
func TestConntrack(t *testing.T) {
	for _, tc := range []struct{ count, most, want string }{
		{"10", "100", ""},
		{"95", "100", "warning conntrack-near : 95 of 100 connections: sysctl -w net.netfilter.nf_conntrack_max=200"},
		{"100", "100", "fault conntrack-full : 100 of 100 connections: sysctl -w net.netfilter.nf_conntrack_max=200"},
	} {
		dir := t.TempDir() + "/"
		for name, value := range map[string]string{"nf_conntrack_count": tc.count, "nf_conntrack_max": tc.most} {
			if err := os.WriteFile(dir+name, []byte(value+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		d := Doctor{Diagnosis: newDiagnosis()}
		d.conntrack(dir)
		got := ""
		for _, f := range d.Findings {
			got += f.Severity + " " + string(f.ID) + " : " + f.What + ": " + f.Fix + f.Look
		}
		if got != tc.want {
			t.Errorf("%s of %s: %q, want %q", tc.count, tc.most, got, tc.want)
		}
	}
	d := Doctor{Diagnosis: newDiagnosis()}
	d.conntrack(t.TempDir() + "/") // no module, no connections
	if len(d.Findings)+len(d.Unseen) > 0 {
		t.Errorf("%v %v", d.Findings, d.Unseen)
	}
}

// TestNeighbours is the drill of the table of neighbours, which all namespaces share.
func TestNeighbours(t *testing.T) {
	proc := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(proc, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("sys/net/ipv4/neigh/default/gc_thresh3", "1024\n")
	write("net/stat/arp_cache", "entries  allocs\n00000400 00001000\n00000400 00001000\n")
	write("sys/net/ipv6/neigh/default/gc_thresh3", "1024\n")
	write("net/stat/ndisc_cache", "entries  allocs\n000003ff 00001000\n")
	d := Doctor{Diagnosis: newDiagnosis()}
	d.neighbours(proc)
	if len(d.Findings) != 1 || d.Findings[0].ID != "neighbour-table-full" ||
		d.Findings[0].What != "1024 of 1024 neighbours of ipv4" ||
		d.Findings[0].Look != "sysctl -w net/ipv4/neigh/default/gc_thresh3=4096" {
		t.Errorf("%+v", d.Findings)
	}
	d = Doctor{Diagnosis: newDiagnosis()}
	d.neighbours(t.TempDir()) // not the first namespace of the machine
	if len(d.Findings)+len(d.Unseen) > 0 {
		t.Errorf("%v %v", d.Findings, d.Unseen)
	}
}

// TestClients holds what is known of the clients that are installed.
func TestClients(t *testing.T) {
	for version, want := range map[string]spec.Version{
		"v0.8.1": spec.V040, "v1.0.1": spec.V100, "v1.1.2": spec.V100, "v1.2.0-rc0": spec.V110, "v1.3.0": spec.V110, "v2.0.0": spec.V110,
	} {
		if got := ofLibrary(version); got != want {
			t.Errorf("library %s: %s, want %s", version, got, want)
		}
	}
	status := "Package: podman\nStatus: install ok installed\nVersion: 4.3.1+ds1-8\n\n" +
		"Package: containerd\nStatus: deinstall ok config-files\nVersion: 1.6.20\n\n" +
		"Package: containerd.io\nStatus: install ok installed\nVersion: 5:2.1.3-1~debian\n"
	for name, want := range map[string]client{
		"podman": {"podman", "4.3.1+ds1-8", spec.V100}, "containerd": {"containerd", "5:2.1.3-1~debian",
			spec.V110}, "crio": {},
	} {
		if got := packaged([]byte(status), name); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// TestLeases is the drill of a DHCP server that does not answer: its leases take minutes to end.
func TestLeases(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	soon, over := now.Add(3*time.Minute), now.Add(-time.Minute)
	web := attach.Cached{Network: "lan", ContainerID: "web", IfName: "eth0"}
	list := func(state string, ends time.Time) []dhcp.Leased {
		state, reason, _ := strings.Cut(state, ": ")
		return []dhcp.Leased{{Network: "lan", ContainerID: "web", IfName: "eth0", State: state,
			Addresses: []string{"10.9.0.10/24"},
			Server:    "10.9.0.1", Ends: &ends, Reason: reason}}
	}
	for state, want := range map[string]string{
		"bound":    "",
		"renewing": "",
		"renewing: no answer": "warning dhcp-server-silent : the DHCP server 10.9.0.1 does not answer, " +
			"10.9.0.10/24 ends in 3m0s: no answer: fairlead dhcp ls lan",
		"rebinding": "warning dhcp-server-silent : the DHCP server 10.9.0.1 does not answer, 10.9.0.10/24 ends in 3m0s: fairlead dhcp ls lan",
		"lost":      "fault dhcp-lease-lost : DHCP leases have expired, 10.9.0.10/24 expired 1m0s ago: fairlead dhcp ls lan",
	} {
		d := Doctor{Diagnosis: newDiagnosis(), Selected: []attach.Cached{web}}
		ends := soon
		if state == "lost" {
			ends = over
		}
		d.leased("lan", list(state, ends), now)
		got := ""
		for _, f := range d.Findings {
			got += f.Severity + " " + string(f.ID) + " : " + f.What + ", " + f.Containers[0].Details[0] + ": " + f.Fix + f.Look
		}
		if got != want {
			t.Errorf("%s: %q, want %q", state, got, want)
		}
		d = Doctor{Diagnosis: newDiagnosis(), named: true} // another container
		if d.leased("lan", list(state, ends), now); len(d.Findings) > 0 {
			t.Errorf("%s: %v", state, d.Findings[0])
		}
	}
}
