package ipam

import (
	"context"
	"net/netip"
	"strings"
	"testing"
)

// readOnly is a Ledger that only reads, from books by their names.
type readOnly struct {
	Ledger
	books map[string]*Book
}

func (l readOnly) Networks(context.Context) ([]string, error) {
	return []string{"net", "old", "empty"}, nil
}

func (l readOnly) Look(_ context.Context, network string, _ ...netip.Addr) (*Book, error) {
	return l.books[network], nil
}

func (l readOnly) Read(path string) (*Book, error) { return l.books[path], nil }

// Of networks that nobody named, those count that have leases in their ranges. A directory that was named has to be
// readable as a whole, and to have leases.
func TestAdoptable(t *testing.T) {
	sets, err := Complete([]Set{{"a", []Range{rng("10.1.0.0/24", "", "", "")}}})
	if err != nil {
		t.Fatal(err)
	}
	leases := []Lease{{Address: netip.MustParseAddr("10.1.0.2")}}
	l := readOnly{books: map[string]*Book{
		"net": {Leases: leases, Sets: sets}, "old": {Leases: leases, Sets: sets, Problems: []string{"10.1.0.3: is empty"}},
		"empty": {Sets: sets}, "/old": {Leases: leases, Problems: []string{"10.1.0.3: is empty"}}, "/whole": {Leases: leases},
		"/none": {},
	}}
	for _, tc := range []struct{ from, books, failure string }{
		{"", "old", ""},
		{"/whole", "/whole", ""},
		{"/whole net", "/whole net", ""},
		{"/old", "", "leases of /old: 10.1.0.3: is empty"},
		{"/none", "", "/none has no leases"},
		{"empty", "", "empty has no leases"},
	} {
		books, err := adoptable(t.Context(), l, "net", strings.Fields(tc.from))
		var names []string
		for _, b := range books {
			names = append(names, b.From)
		}
		said := ""
		if err != nil {
			said = err.Error()
		}
		if strings.Join(names, " ") != tc.books || said != tc.failure {
			t.Errorf("%q: %q, %q, want %q, %q", tc.from, names, said, tc.books, tc.failure)
		}
		if tc.failure == "" {
			continue
		}
		if _, err := Adopt(t.Context(), l, "net", strings.Fields(tc.from), true); err == nil || err.Error() != tc.failure {
			t.Errorf("adopt from %q: %v, want %s", tc.from, err, tc.failure)
		}
	}
}
