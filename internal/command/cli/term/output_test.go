package term

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

// Columns line up by what is seen, colours and letters of several bytes included.
func TestTable(t *testing.T) {
	var b strings.Builder
	s := Style{On: true}
	Table{{"A", "BB", "C"}, {"größe", s.Bad("no"), "x"}, {"1", "", s.Good("yes")}}.Print(&b, Style{})
	want := "A      BB  C\ngröße  \x1b[31mno\x1b[0m  x\n1          \x1b[32myes\x1b[0m\n"
	if b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}

// What plugins log is said as this program says it, and what is no log as it is.
func TestTold(t *testing.T) {
	for line, want := range map[string]string{
		`level=WARN msg="unknown key \"isGatway\", did you mean \"isGateway\"?" network=typo plugin=bridge`: `fairlead: warning: network typo: bridge: unknown key "isGatway", did you mean "isGateway"?`,
		`level=INFO msg="removing a lease" network=lan address=10.1.2.3`:                                    "fairlead: network lan: removing a lease, address 10.1.2.3",
		`level=WARN msg="the container has deleted the device" device=ens4 "was for"=x/c1/eth0`:             "fairlead: warning: the container has deleted the device, device ens4, was for x/c1/eth0",
		"warning: the cache is odd":      "fairlead: warning: the cache is odd",
		"level=WARN and then some words": "level=WARN and then some words",
		"panic: something":               "panic: something",
		"":                               "",
	} {
		if got := reformat(line); got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
		var b strings.Builder
		if fmt.Fprintln(NewScreen(&b), line); b.String() != want+"\n" {
			t.Errorf("%s: %q is shown", line, b.String())
		}
	}
	var b strings.Builder
	s := NewScreen(&b)
	for range 2 {
		fmt.Fprint(s, "level=WARN msg=odd network=lan\nplain\n")
	}
	if b.String() != "fairlead: warning: network lan: odd\nplain\nplain\n" {
		t.Errorf("%q is shown", b.String())
	}
}

func TestTree(t *testing.T) {
	root := &Tree{Text: "host"}
	lan := root.Add("lan")
	lan.Add("a").Add("b")
	lan.Add("c")
	root.Add("wan")
	var b strings.Builder
	root.Print(&b, Style{})
	want := "host\n├─ lan\n│  ├─ a\n│  │  └─ b\n│  └─ c\n└─ wan\n"
	if b.String() != want {
		t.Errorf("%s, want %s", b.String(), want)
	}
}

// What comes from files is shown as text, whatever a terminal would make of it; colours are ours alone.
func TestPrintable(t *testing.T) {
	const evil = "a\x1b[2Jb\r\n\u009b1mc\u202ed\xff größe"
	const want = `a\x1b[2Jb\r\n\u009b1mc\u202ed\xff größe`
	s := Style{On: true}
	if got := Sprintf("%s %v %q %d", evil, errors.New(evil), "x", 7); got != want+" "+want+` "x" 7` {
		t.Errorf("%s", got)
	}
	if got := Sprintf("%s", s.Bad(evil)); got != "\x1b[31m"+want+"\x1b[0m" {
		t.Errorf("%q", got)
	}
	if got := Lines(errors.Join(errors.New("a\x1bb"), errors.New("c"))); got != "a\\x1bb\n          c" {
		t.Errorf("%q", got)
	}
	var b strings.Builder
	Table{{"A", "B"}, {evil, s.Good("yes")}}.Print(&b, Style{})
	root := &Tree{Text: "host"}
	root.Add("%s", evil)
	root.Print(&b, Style{})
	fmt.Fprint(NewScreen(&b), evil, "\n\tmore\n")
	if got := strings.ReplaceAll(b.String(), "\x1b[32myes\x1b[0m", ""); strings.ContainsAny(got, "\x1b\r\u009b\u202e") ||
		!utf8.ValidString(got) || strings.Count(got, want) != 2 {
		t.Errorf("%q", got)
	}
	b.Reset()
	if err := PrintJSON(&b, evil); err != nil {
		t.Fatal(err)
	}
	var back string
	if err := json.Unmarshal([]byte(b.String()), &back); err != nil || back != strings.ToValidUTF8(evil, "\ufffd") ||
		strings.ContainsAny(b.String(), "\x1b\u009b\u202e") {
		t.Errorf("%s: %q, %v", b.String(), back, err)
	}
}
