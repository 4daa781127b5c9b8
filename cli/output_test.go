package cli

import (
	"strings"
	"testing"
)

// Columns line up by what is seen, colours and letters of several bytes included.
func TestTable(t *testing.T) {
	var b strings.Builder
	s := style{on: true}
	table{{"A", "BB", "C"}, {"größe", s.bad("no"), "x"}, {"1", "", s.good("yes")}}.print(&b, style{})
	want := "A      BB  C\ngröße  \x1b[31mno\x1b[0m  x\n1          \x1b[32myes\x1b[0m\n"
	if b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}

func TestTree(t *testing.T) {
	root := &tree{text: "host"}
	lan := root.add("lan")
	lan.add("a").add("b")
	lan.add("c")
	root.add("wan")
	var b strings.Builder
	root.print(&b, style{})
	want := "host\n├─ lan\n│  ├─ a\n│  │  └─ b\n│  └─ c\n└─ wan\n"
	if b.String() != want {
		t.Errorf("%s, want %s", b.String(), want)
	}
}
