package faults

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// A history is which container had which address, and when. All nodes share a kernel, so one monotonic clock orders all
// calls.
type history struct {
	mu    sync.Mutex
	begun time.Time
	holds []*hold
}

// A hold is an address from the end of an ADD to the begin of its DEL, or to the end of its container. In that time, the
// container has the address for certain.
type hold struct {
	node, container, address string
	from, to                 time.Duration // zero: it goes on
}

func newHistory() *history { return &history{begun: time.Now()} }

// got notes what an ADD that has ended gave.
func (h *history) got(node, container, address string) *hold {
	h.mu.Lock()
	defer h.mu.Unlock()
	one := &hold{node: node, container: container, address: address, from: time.Since(h.begun)}
	h.holds = append(h.holds, one)
	return one
}

// gives notes that a DEL begins, or that the container has ended.
func (h *history) gives(one *hold) {
	h.mu.Lock()
	defer h.mu.Unlock()
	one.to = time.Since(h.begun)
}

// twice returns two holds of one address at one time, for each address that has such.
func (h *history) twice() (found [][2]hold) {
	h.mu.Lock()
	defer h.mu.Unlock()
	byAddress := map[string][]*hold{}
	for _, one := range h.holds {
		byAddress[one.address] = append(byAddress[one.address], one)
	}
	for _, of := range byAddress {
		slices.SortFunc(of, func(a, b *hold) int { return cmp.Compare(a.from, b.from) })
		for i, later := range of[1:] {
			if former := of[i]; former.to == 0 || former.to > later.from {
				found = append(found, [2]hold{*former, *later})
				break
			}
		}
	}
	return found
}

func (o hold) String() string {
	end := "until now"
	if o.to != 0 {
		end = "to " + o.to.String()
	}
	return fmt.Sprintf("container %s of node %s has %s from %v %s", o.container, o.node, o.address, o.from, end)
}

// check fails if two containers had one address at one time.
func (h *history) check(t testing.TB, when string) {
	t.Helper()
	for _, two := range h.twice() {
		t.Errorf("%s: an address is held twice:\n%v\n%v", when, two[0], two[1])
	}
}

// The checker finds what it has to: an overlap, also of a hold that goes on; and nothing else.
func TestHistory(t *testing.T) {
	h := newHistory()
	first := h.got("a", "c1", "10.9.0.2")
	h.got("b", "c2", "10.9.0.3")
	h.gives(first)
	second := h.got("b", "c3", "10.9.0.2")
	if found := h.twice(); len(found) > 0 {
		t.Errorf("found %v where one comes after the other", found)
	}
	h.got("a", "c4", "10.9.0.2")
	h.gives(second)
	found := h.twice()
	if len(found) != 1 || !strings.Contains(found[0][0].String(), "c3 of node b") || found[0][1].container != "c4" {
		t.Errorf("found %v, want c3 and c4", found)
	}
}
