package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// readOnly is a Ledger that only reads, from books by their names.
type readOnly struct {
	Ledger
	books   map[string]*Book
	unread  error
	did     *[]string
	refused map[string]error
}

func (l readOnly) Networks(context.Context) ([]string, error) {
	return []string{"net", "old", "empty"}, l.unread
}

func (l readOnly) Look(_ context.Context, network string, _ ...netip.Addr) (*Book, error) {
	if strings.Contains(network, "/") {
		return nil, errors.New("a directory is no network")
	}
	return l.book(network)
}

func (l readOnly) Read(path string) (*Book, error) {
	if !strings.Contains(path, "/") {
		return nil, errors.New("a network is no directory")
	}
	return l.book(path)
}

func (l readOnly) book(name string) (*Book, error) {
	if b := l.books[name]; b != nil {
		return b, nil
	}
	return nil, fmt.Errorf("%s is not there", name)
}

// Import adds the leases but the first, which the network has.
func (l readOnly) Import(_ context.Context, network string, b *Book, force, dry bool) (*Book, error) {
	if network != "net" || force {
		return nil, errors.New("only net takes leases, and none by force")
	}
	*l.did = append(*l.did, fmt.Sprintf("%s %v", b.From, dry))
	return &Book{Leases: b.Leases[1:]}, l.refused[fmt.Sprintf("%s %v", b.From, dry)]
}

// All leases are looked at before one is added. What was added is told, and a refusal of one network is that of all.
func TestAdopt(t *testing.T) {
	lease := func(a string) Lease { return Lease{Address: netip.MustParseAddr(a)} }
	books := map[string]*Book{"a": {Leases: []Lease{lease("10.1.0.2"), lease("10.1.0.3")}}, "b": {Leases: []Lease{lease("10.1.0.4")}}}
	no, never := errors.New("no"), errors.New("never")
	for _, tc := range []struct {
		dry     bool
		refused map[string]error
		did     string
		added   string
		errs    []error
	}{
		{true, nil, "a true, b true", "a 2 [10.1.0.3], b 1 []", nil},
		{false, nil, "a true, b true, a false, b false", "a 2 [10.1.0.3], b 1 []", nil},
		{false, map[string]error{"a true": no, "b true": never}, "a true, b true", "", []error{no, never}},
		{true, map[string]error{"b true": no}, "a true, b true", "a 2 [10.1.0.3]", []error{no}},
		{false, map[string]error{"a false": no}, "a true, b true, a false", "", []error{no}},
	} {
		var did, added []string
		all, err := Adopt(t.Context(), readOnly{books: books, did: &did, refused: tc.refused}, "net", []string{"a", "b"}, tc.dry)
		for _, a := range all {
			addrs := []netip.Addr{}
			for _, l := range a.Added {
				addrs = append(addrs, l.Address)
			}
			if a.Added == nil {
				t.Error("none is not written as a list")
			}
			added = append(added, fmt.Sprint(a.From, " ", a.Leases, " ", addrs))
		}
		if strings.Join(did, ", ") != tc.did || strings.Join(added, ", ") != tc.added || (err != nil) != (tc.errs != nil) {
			t.Errorf("%+v: did %q, %q, %v", tc, did, added, err)
		}
		for _, want := range tc.errs {
			if !errors.Is(err, want) {
				t.Errorf("%v: it is %v", want, err)
			}
		}
	}
}

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
		{"nowhere", "", "nowhere is not there"},
		{"/nowhere", "", "/nowhere is not there"},
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
	l.unread = errors.New("no networks can be read")
	if books, err := adoptable(t.Context(), l, "net", nil); err != l.unread {
		t.Errorf("of unknown networks: %v, %v", books, err)
	}
}
