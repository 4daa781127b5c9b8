package graph

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the goldens anew")

// small is a host as a reader of the documentation may have it.
func small() *Graph {
	return &Graph{
		Host:    "node-1",
		Uplinks: []string{"eth0 (up) 192.0.2.10/24 2001:db8::10/64, default via 192.0.2.1"},
		Segments: []Segment{
			{Name: "lan0", Kind: "bridge", Up: Up, Facts: []string{"10.80.0.1/24", "lan0.20 10.80.20.1/24, VLAN 20"},
				Ends: []End{
					{Container: "default/web-0", ID: "0123456789ab", Whole: "0123", Alive: "alive", Network: "lan", Name: "eth0",
						Host: "veth6a5jw2kq7xe", Wire: Up, Addresses: []string{"10.80.0.2/24", "fd00:80::2/64"},
						Ports: []string{"8080:80/tcp", "8443:443/tcp"},
						Marks: []string{"masquerade", "isolated"}},
					{Container: "db", Whole: "db", Alive: "alive", Network: "lan", Name: "eth0", Host: "vethq2m4xk3w5ta", Wire: Up,
						Addresses: []string{"10.80.0.3/24"}, Marks: []string{"masquerade", "isolated"}},
					{Container: "old", Whole: "old", Alive: "gone", Network: "lan", Name: "eth0",
						Host: "veth7p3ksm2eq4c", Wire: Broken, Addresses: []string{"10.80.20.4/24"},
						Marks: []string{"VLAN 20", "strict"}},
				}},
			{Name: "eth1", Kind: "master", Up: Up, Facts: []string{"192.168.7.10/24"}, Ends: []End{
				{Container: "default/web-0", ID: "0123456789ab", Whole: "0123", Alive: "alive", Network: "office",
					Name: "net1", Kind: "macvlan", Wire: Up, Addresses: []string{"192.168.7.40/24"}},
			}},
			{Name: "p2p", Kind: "routed", Up: Up, Ends: []End{
				{Container: "build", ID: "fedcba987654", Whole: "fedc", Alive: "alive", Network: "p2p", Name: "eth0",
					Host: "vethb4t6w3lkq2d", Wire: Down, Addresses: []string{"10.81.0.2/24"}, Marks: []string{"rate 8 Mbit/s"}},
			}},
		},
	}
}

// large has as many containers as people look at in one picture.
func large() *Graph {
	g := &Graph{Host: "node-2", Uplinks: []string{"eth0 (up) 192.0.2.10/24, default via 192.0.2.1"}}
	s := Segment{Name: "cni0", Kind: "bridge", Up: Up, Facts: []string{"10.42.0.1/16 fd42::1/64", "ports eth2 bond0.7"}}
	for i := range 54 {
		e := End{Container: fmt.Sprintf("team-%c/checkout-backend-7d9c8b5f4-%05d", 'a'+i%5, i*7919%100000),
			ID: fmt.Sprintf("%012x", 0xabc000+i*104729), Alive: "alive", Network: "pods", Name: "eth0", Whole: fmt.Sprint(i),
			Host: fmt.Sprintf("veth%011x", i*7368787), Wire: Up,
			Addresses: []string{fmt.Sprintf("10.42.%d.%d/16", i/200, 2+i), fmt.Sprintf("fd42::1234:5678:9abc:%x/64", i)}}
		if i%7 == 3 {
			e.Ports = []string{fmt.Sprintf("%d:80/tcp", 8000+i), fmt.Sprintf("%d:443/tcp", 9000+i)}
		}
		if i%5 == 0 {
			e.Marks = []string{"isolated", "VLAN " + fmt.Sprint(100+i), "rate 100 Mbit/s"}
		}
		if i == 20 {
			e.Wire = Broken
		}
		s.Ends = append(s.Ends, e)
	}
	g.Segments = append(g.Segments, s)
	m := Segment{Name: "eth1", Kind: "master", Up: Up}
	for i := range 6 {
		m.Ends = append(m.Ends, End{Container: fmt.Sprintf("team-a/camera-%d", i), Whole: fmt.Sprintf("camera-%d", i),
			Alive: "alive", Network: "cameras", Name: "net1", Kind: "macvlan", Wire: Up,
			Addresses: []string{fmt.Sprintf("192.168.7.%d/24", 40+i)}})
	}
	g.Segments = append(g.Segments, m)
	return g
}

// hostile has in each place what formats take for more than text.
func hostile() *Graph {
	bad := "</text><script>alert(1)</script>]]>&amp;\"'`\\\\\\\"\x1b[31m\x00\n\t\r\u202e\ud7ff\ufffe#quot;\" ; " +
		"click c0 href \"x\" %%{init: {}}%% " +
		"|end| --> x\\N\\G {a|b} [c] (d) <b>é漢\xff" + strings.Repeat("w", 300)
	e := End{Container: bad, ID: bad, Alive: bad, Network: bad, Name: bad, Host: bad, Kind: bad, Wire: State(bad),
		Addresses: []string{bad, ""}, Ports: []string{bad}, Marks: []string{bad, "", bad}}
	return &Graph{Host: bad, Uplinks: []string{bad}, Unseen: []string{bad},
		Segments: []Segment{{Name: bad, Kind: bad, Up: State(bad), Facts: []string{bad}, Ends: []End{e, e}, More: 3}, {}}}
}

func write(t *testing.T, g *Graph, format string) string {
	t.Helper()
	var b bytes.Buffer
	err := map[string]func(io.Writer) error{"svg": g.WriteSVG, "dot": g.WriteDOT, "mmd": g.WriteMermaid}[format](&b)
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestGolden holds the pictures; docs/graph.svg, which the documentation shows, is one of them. -update writes them.
func TestGolden(t *testing.T) {
	folded := large()
	folded.Fold(6)
	for file, g := range map[string]*Graph{"../../../docs/graph.svg": small(), "testdata/small.dot": small(),
		"testdata/small.mmd": small(), "testdata/folded.svg": folded, "testdata/empty.svg": {Host: "empty"}} {
		got := write(t, g, file[strings.LastIndexByte(file, '.')+1:])
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s is out of date; `make generate` writes it", file)
		}
	}
}

// TestHostile holds that text stays text, whatever it says.
func TestHostile(t *testing.T) {
	svg := write(t, hostile(), "svg")
	d := xml.NewDecoder(strings.NewReader(svg))
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("svg: %v", err)
		}
		s, ok := tok.(xml.StartElement)
		if ok && !strings.Contains(" svg title style rect path text circle ", " "+s.Name.Local+" ") {
			t.Errorf("svg has an element %s", s.Name.Local)
		}
	}
	for _, format := range []string{"svg", "dot", "mmd"} {
		control := regexp.MustCompile(`[\x00-\x08\x0b-\x1f\x7f]|\x{202e}|\x{fffe}`)
		if control.MatchString(write(t, hostile(), format)) {
			t.Errorf("%s has control characters", format)
		}
	}
	// Nothing stands outside of the quotes but our own words.
	words := regexp.MustCompile(`^(graph fairlead \{|\}|\t(rankdir|node|edge) ?[=\[].*|\thost -- s\d+;|` +
		`\t(host|[csm]\d+)( -- [cm]\d+)?( \[label="", .*\];|;| \[label=""(, [^"]*("#\w+")?)?\];))$`)
	quoted := regexp.MustCompile(`label="(\\.|[^"\\])*"`)
	for l := range strings.Lines(write(t, hostile(), "dot")) {
		if l = quoted.ReplaceAllString(strings.TrimSuffix(l, "\n"), `label=""`); !words.MatchString(l) {
			t.Errorf("dot: %q", l)
		}
	}
	words = regexp.MustCompile(`^(flowchart TB|\thost --- s\d+|\t(host|[sm]\d+)\[""\]|\tc\d+\(""\)|` +
		`\ts\d+ (---|-\.-)\|""\| c\d+|\ts\d+ -\.- m\d+)$`)
	quoted = regexp.MustCompile(`"([\pL\pN .:/,-]|#\d+;|<br/>)*"`)
	for l := range strings.Lines(write(t, hostile(), "mmd")) {
		if l = quoted.ReplaceAllString(strings.TrimSuffix(l, "\n"), `""`); !words.MatchString(l) {
			t.Errorf("mermaid: %q", l)
		}
	}
}

// TestFold holds that what is folded away is counted.
func TestFold(t *testing.T) {
	g := large()
	g.Fold(10)
	if s := g.Segments[0]; len(s.Ends) != 10 || s.More != 44 || g.Segments[1].More != 0 {
		t.Errorf("%d interfaces and %d more, then %d more", len(s.Ends), s.More, g.Segments[1].More)
	}
	for _, format := range []string{"svg", "dot", "mmd"} {
		if !strings.Contains(write(t, g, format), "and 44 more") {
			t.Errorf("%s does not say what is folded away", format)
		}
	}
	if g.Fold(0); g.Segments[0].More != 44 {
		t.Error("a fold of none folds")
	}
}
