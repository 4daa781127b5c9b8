package kernel

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

func open(t *testing.T) *NS {
	t.Helper()
	ns, err := Open(nstest.NewNS(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ns.Close)
	return ns
}

func TestErrorsInTheKernelsWords(t *testing.T) {
	ns := open(t)
	lo, err := ns.Link("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := ns.SetLink("lo", LinkChange{Up: true}); err != nil {
		t.Fatal(err)
	}
	err = ns.AddRoute(Route{Dst: mustPrefix("192.0.2.0/24"), Via: mustPrefix("203.0.113.1/32").Addr(), Link: lo.Index,
		Table: MainTable}, false)
	if !errors.Is(err, unix.ENETUNREACH) || !strings.Contains(err.Error(), "Nexthop has invalid gateway") {
		t.Errorf("a change: %v", err)
	}
	// The words at the end of a failed dump come in another place than those of a change.
	req := newRequest(unix.RTM_GETROUTE, unix.NLM_F_DUMP)
	req.AddData(rtMsg(unix.AF_INET))
	req.AddData(attrU32(unix.RTA_TABLE, 4711))
	if _, err := ns.Call(req, unix.RTM_NEWROUTE); !errors.Is(err, unix.ENOENT) ||
		!strings.Contains(err.Error(), "table does not exist") {
		t.Errorf("a dump: %v", err)
	}
	if list, err := ns.Routes(RouteFilter{Family: IPv4, Table: 4711}); err != nil || list != nil {
		t.Errorf("a table that nobody has used: %v, %v", list, err)
	}
	if _, err := ns.Link("none"); !errors.Is(err, ErrNoLink) {
		t.Error(err)
	}
	if _, err := ns.Link(strings.Repeat("x", 16)); !errors.Is(err, ErrNoLink) {
		t.Errorf("a name that no link can have: %v", err)
	}
	if err := ns.SetLink("none", LinkChange{Up: true}); !errors.Is(err, ErrNoLink) {
		t.Error(err)
	}
	if err := errors.Join(ns.DelLink(4711), ns.DelGroup(4711),
		ns.DelAddr(lo.Index, Addr{Prefix: mustPrefix("192.0.2.1/24")}),
		ns.DelRoute(Route{Dst: mustPrefix("192.0.2.0/24"), Link: lo.Index, Table: MainTable})); err != nil {
		t.Errorf("what is not there is deleted: %v", err)
	}
}

func TestSysctlPath(t *testing.T) {
	for key, want := range map[string]string{
		"net.ipv4.ip_forward":                 "net/ipv4/ip_forward",
		"net/ipv4/ip_forward":                 "net/ipv4/ip_forward",
		"net.ipv4.conf.eth0/5.rp_filter":      "net/ipv4/conf/eth0.5/rp_filter",
		"net/ipv4/conf/eth0.5/rp_filter":      "net/ipv4/conf/eth0.5/rp_filter",
		"net.ipv4.conf.eth0.5.rp_filter":      "net/ipv4/conf/eth0.5/rp_filter",
		"net.ipv6.neigh.eth0.5.gc_stale_time": "net/ipv6/neigh/eth0.5/gc_stale_time",
		"net.ipv4.conf.all.forwarding":        "net/ipv4/conf/all/forwarding",
		"vm.swappiness":                       "vm/swappiness",
		"":                                    "",
		"net..ipv4":                           "",
		"net/../kernel/hostname":              "",
		"net.ipv4.conf.//.rp_filter":          "",
		"/net":                                "",
		"net/":                                "",
		"net\x00":                             "",
	} {
		got, err := SysctlPath(key)
		if want != "" {
			want = "/proc/sys/" + want
		}
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v, want %q", key, got, err, want)
		}
	}
}

// Whatever comes in an answer, reading it does not panic.
func FuzzParse(f *testing.F) {
	f.Add(make([]byte, 64))
	f.Add([]byte{2, 24, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0, 8, 0, 1, 0, 192, 0, 2, 0, 12, 0, 9, 0, 8, 0, 0, 0, 1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		parseLink(b)
		parseRoute(b)
		for _, typ := range []uint16{unix.NLMSG_ERROR, unix.NLMSG_DONE} {
			_ = message{typ: typ, flags: unix.NLM_F_ACK_TLVS, body: b}.err()
		}
	})
}

func mustPrefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func rtMsg(family uint8) *nl.RtMsg { return &nl.RtMsg{RtMsg: unix.RtMsg{Family: family}} }
