package rtnl

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/kernel/kerneltest"
	"golang.org/x/sys/unix"
)

func TestErrorsInTheKernelsWords(t *testing.T) {
	ns := kerneltest.Open(t)
	lo, err := LinkByName(ns, "lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := SetLink(ns, "lo", LinkChange{Up: true}); err != nil {
		t.Fatal(err)
	}
	err = AddRoute(ns, Route{Dst: mustPrefix("192.0.2.0/24"), Via: mustPrefix("203.0.113.1/32").Addr(), Link: lo.Index,
		Table: MainTable}, false)
	if !errors.Is(err, unix.ENETUNREACH) || !strings.Contains(err.Error(), "Nexthop has invalid gateway") {
		t.Errorf("a change: %v", err)
	}
	// The words at the end of a failed dump come in another place than those of a change.
	req := newRequest(unix.RTM_GETROUTE, unix.NLM_F_DUMP, unix.RtMsg{Family: unix.AF_INET})
	req.Host32(unix.RTA_TABLE, 4711)
	if _, err := Call(ns, req, unix.RTM_NEWROUTE); !errors.Is(err, unix.ENOENT) ||
		!strings.Contains(err.Error(), "table does not exist") {
		t.Errorf("a dump: %v", err)
	}
	if list, err := Routes(ns, RouteFilter{Family: IPv4, Table: 4711}); err != nil || list != nil {
		t.Errorf("a table that nobody has used: %v, %v", list, err)
	}
	if _, err := LinkByName(ns, "none"); !errors.Is(err, ErrNoLink) {
		t.Error(err)
	}
	if _, err := LinkByName(ns, strings.Repeat("x", 16)); !errors.Is(err, ErrNoLink) {
		t.Errorf("a name that no link can have: %v", err)
	}
	if err := SetLink(ns, "none", LinkChange{Up: true}); !errors.Is(err, ErrNoLink) {
		t.Error(err)
	}
	if _, err := Addrs(ns, 4711); !errors.Is(err, ErrNoLink) {
		t.Errorf("the addresses of a link that is gone: %v", err)
	}
	if err := errors.Join(DelLink(ns, 4711), DelGroup(ns, 4711),
		DelAddr(ns, lo.Index, Addr{Prefix: mustPrefix("192.0.2.1/24")}),
		DelRoute(ns, Route{Dst: mustPrefix("192.0.2.0/24"), Link: lo.Index, Table: MainTable})); err != nil {
		t.Errorf("what is not there is deleted: %v", err)
	}
}

func mustPrefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
