package blocks

import (
	"slices"
	"testing"
)

// A node is awaited until it has asserted what it has in this readoption of this store, and not in an earlier one.
func TestAwaited(t *testing.T) {
	entry := func(kind Kind, node string, v Value) Entry {
		return Entry{Pair: Pair{Key: Key{Kind: kind, Node: node}, Value: v}, Revision: 7}
	}
	entries := []Entry{entry(ReadoptKey, "", Value{})}
	for _, node := range []string{"asserted", "silent", "other store", "earlier", "forgotten"} {
		entries = append(entries, entry(EpochKey, node, Value{Epoch: &Epoch{Gone: node == "forgotten"}}))
	}
	for node, r := range map[string]Readoption{"asserted": {"s", 7}, "other store": {"r", 7}, "earlier": {"s", 6}} {
		entries = append(entries, entry(AssertKey, node, Value{Readoption: &r}))
	}
	got, want := Awaited(entries, "s"), []string{"silent", "other store", "earlier"}
	if !slices.Equal(got, want) {
		t.Errorf("%q are awaited, want %q", got, want)
	}
}
