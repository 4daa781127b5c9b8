package txtar

import "testing"

func TestArchive(t *testing.T) {
	const text = "What it is.\n-- a --\none\n\n-- b c --\n-- d --\n-- not a name\nlast\n"
	a := Parse(text)
	if got := a.String(); got != text {
		t.Errorf("String gives\n%s\nof\n%s", got, text)
	}
	for name, want := range map[string]string{"": "What it is.\n", "a": "one\n\n", "b c": "", "d": "-- not a name\nlast\n"} {
		if got, ok := a.Parts()[name]; !ok || got != want {
			t.Errorf("%q is %q, %v; want %q", name, got, ok, want)
		}
	}
	if got := (Archive{Files: []File{{"a", "x"}}}).String(); got != "-- a --\nx\n" {
		t.Errorf("a last line without its end: %q", got)
	}
}
