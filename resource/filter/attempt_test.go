package filter_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/resource/filter/filtertest"
	"golang.org/x/sys/unix"
)

// What another transaction came between is done again, and what the kernel refuses is not. No error hangs a call.
func TestAttempt(t *testing.T) {
	again := func(n int, err error) []error { return slices.Repeat([]error{err}, n) }
	for name, tc := range map[string]struct {
		errs    []error
		disturb bool // another program changes something each time
		calls   int
		err     error
	}{
		"done":                                {nil, false, 1, nil},
		"read anew":                           {again(3, unix.ERESTART), false, 4, nil},
		"what stands was made meanwhile":      {again(1, unix.EEXIST), false, 2, nil},
		"what stands was removed meanwhile":   {again(1, unix.ENOENT), false, 2, nil},
		"what stands is not as it is said":    {again(2, unix.EEXIST), false, 2, unix.EEXIST},
		"the kernel sorts":                    {again(20, unix.EBUSY), false, 21, nil},
		"the kernel sorts for ever":           {again(30, unix.EBUSY), false, 21, unix.EBUSY},
		"refused":                             {again(3, unix.EPERM), false, 1, unix.EPERM},
		"refused between two generations":     {again(3, unix.EPERM), true, 4, nil},
		"refused between all the generations": {again(30, unix.EPERM), true, 11, unix.EPERM},
	} {
		w := contract.NewHost(t)
		calls := 0
		err := filter.Transact(t.Context(), w, filter.Inet(), func(filter.Tx) error {
			if calls++; calls > len(tc.errs) {
				return nil
			}
			if tc.disturb {
				filtertest.NFT(t, w, fmt.Sprintf("add table ip other%d", calls))
			}
			return tc.errs[calls-1]
		})
		if calls != tc.calls || !errors.Is(err, tc.err) {
			t.Errorf("%s: %d calls, %v, want %d, %v", name, calls, err, tc.calls, tc.err)
		}
	}

	ctx, stop := context.WithCancel(t.Context())
	calls := 0
	err := filter.Transact(ctx, contract.NewHost(t), filter.Inet(), func(filter.Tx) error {
		calls++
		stop()
		return unix.ERESTART
	})
	if calls != 1 || !errors.Is(err, unix.ERESTART) {
		t.Errorf("without its caller: %d calls, %v", calls, err)
	}
}

// A kernel without nf_tables has nothing to remove. Of other errors that is not known.
func TestUnavailable(t *testing.T) {
	for _, err := range []error{unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, unix.EINVAL, unix.EOPNOTSUPP} {
		if !filter.Unavailable(fmt.Errorf("socket: %w", err)) {
			t.Errorf("%v", err)
		}
	}
	for _, err := range []error{nil, unix.EPERM, unix.ENOENT, unix.EMFILE} {
		if filter.Unavailable(err) {
			t.Errorf("%v", err)
		}
	}
}

// What a table lacks of the chains that attachments share is named: the chain, its set, and the rule that leads there.
func TestStanding(t *testing.T) {
	w := contract.NewHost(t)
	filtertest.MakeTables(t, w)
	p := filter.NewChainSet(filter.Inet())
	way := func(*nft.Set) *nft.Rule { return nft.NewRule("mine") }
	p.Share("user", "mine", way, []*nft.Rule{nft.NewRule("verdict").Accept()})
	standing := func(p *filter.ChainSet) (text string, err error) {
		err = filter.Transact(t.Context(), w, filter.Inet(), func(f filter.Tx) error {
			d, err := f.Standing(p)
			text = fmt.Sprint(d.Err())
			return err
		})
		return text, err
	}
	text, err := standing(p)
	for _, want := range []string{"chain inet fairlead mine_", `rule inet fairlead user "mine `} {
		if err != nil || !strings.Contains(text, want) {
			t.Errorf("%s, %v, lacks %q", text, err, want)
		}
	}
	if err := filter.Transact(t.Context(), w, filter.Inet(), func(f filter.Tx) error { return f.EnsureBase(p) }); err != nil {
		t.Fatal(err)
	}
	if text, err := standing(p); err != nil || text != "<nil>" {
		t.Errorf("made: %s, %v", text, err)
	}
	filtertest.NFT(t, w, "flush ruleset")
	if text, err := standing(p); err != nil || strings.Count(text, "table") != 1 {
		t.Errorf("without the table: %s, %v", text, err)
	}
}
