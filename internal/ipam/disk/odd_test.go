package disk

import (
	"context"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/ipam"
)

// What no DEL can name, no container can have, and what reserve refuses is not imported, and said for what it is.
func TestImportRefused(t *testing.T) {
	good := ipam.Binding{Address: addr("10.1.0.9"), Key: "web", IfName: "eth0", Seconds: 60, Since: time.Now()}
	lease := func(a, id, ifName string) *ipam.Book {
		return &ipam.Book{Leases: []ipam.Lease{{Address: addr(a), ContainerID: id, IfName: ifName}}}
	}
	held := func(change func(k *ipam.Binding)) *ipam.Book {
		k := good
		change(&k)
		return &ipam.Book{Sticky: []ipam.Binding{k}}
	}
	reserved := func(p, key string) *ipam.Book {
		return &ipam.Book{Reserved: []ipam.Reservation{{Prefix: netip.MustParsePrefix(p), For: key}}}
	}
	both := func(a, b *ipam.Book) *ipam.Book {
		return &ipam.Book{Leases: append(a.Leases, b.Leases...), Sticky: append(a.Sticky, b.Sticky...),
			Reserved: append(a.Reserved, b.Reserved...)}
	}
	for _, tc := range []struct {
		b     *ipam.Book
		want  string
		force bool // force takes it
	}{
		{lease("10.1.0.5", "../../x", "eth0"), `containerID: container ID "../../x" begins with`, false},
		{lease("10.1.0.5", "a\nb", "eth0"), `has the character '\n'`, false},
		{lease("10.1.0.5", "", "eth0"), "no owner", false},
		{lease("10.1.0.5", "a", "e/h0"), "ifname: interface name", false},
		{lease("0.0.0.0", "a", "eth0"), "address 0.0.0.0 is not the address of a host", false},
		{lease("127.0.0.1", "a", "eth0"), "is not the address of a host", false},
		{lease("224.0.0.1", "a", "eth0"), "is not the address of a host", false},
		{lease("255.255.255.255", "a", "eth0"), "is not the address of a host", false},
		{lease("ff02::1", "a", "eth0"), "is not the address of a host", false},
		{held(func(k *ipam.Binding) { k.IfName = "e/t\nh0" }), "ifname: interface name", false},
		{held(func(k *ipam.Binding) { k.Key = "" }), "key: is empty", false},
		{held(func(k *ipam.Binding) { k.Seconds = -1 }), "ttl: -1: want seconds", false},
		{held(func(k *ipam.Binding) { k.Since = time.Unix(-1, 0) }), "since: 1969-12-31T23:59:59Z: want a time after 1970",
			false},
		{held(func(k *ipam.Binding) { k.Address = addr("127.0.0.1") }), "is not the address of a host", false},
		{reserved("0.0.0.0/0", ""), "is the whole pool", true},
		{reserved("::/0", ""), "is the whole pool", true},
		{reserved("10.1.0.1/32", ""), "is the gateway of", true},
		{reserved("10.1.0.8/32", "web"), "has no sticky keys", true},
		{reserved("10.1.0.0/28", ""), "10.1.0.2 is in use by a eth0 here", true},
		{lease("", "b", "eth0"), "there is no address", false},
		{lease("fe80::1%eth0", "b", "eth0"), "want a plain IPv4 or IPv6 address", false},
		{lease("::ffff:10.1.0.5", "b", "eth0"), "want a plain IPv4 or IPv6 address", false},
		{lease("10.1.0.5", strings.Repeat("x", 1<<16+1), "eth0"), "containerID: 65537 bytes: want 65536 at most", false},
		{lease("10.9.0.5", "b", "eth0"), "10.9.0.5 is not in any range", true},
		{lease("10.1.0.1", "b", "eth0"), "10.1.0.1 is the gateway of 10.1.0.0/24", true},
		{lease("10.1.0.2", "b", "eth0"), "by a eth0, and not by b eth0", false},
		{both(lease("10.1.0.5", "b", "eth0"), lease("10.1.0.5", "c", "eth0")), "leases[1]: 10.1.0.5 is c eth0's, and another's in leases[0]", false},
		{both(lease("10.1.0.5", "b", "eth0"), lease("10.1.0.6", "b", "eth0")), "leases[1]: 10.1.0.6 is a second address of", true},
		{both(lease("10.1.0.9", "b", "eth1"), held(func(*ipam.Binding) {})), `10.1.0.9 is held for interface "eth0" of web, and leases[0]`, true},
		{held(func(k *ipam.Binding) { k.Address = addr("10.1.0.2") }), "by a eth0, and cannot be held for web", false},
		{held(func(k *ipam.Binding) { k.Address = addr("10.9.0.9") }), "10.9.0.9 is not in any range", true},
		{held(func(k *ipam.Binding) { k.Key = strings.Repeat("x", 1<<16+1) }), "key: 65537 bytes: want 65536 at most", false},
		{held(func(k *ipam.Binding) { k.Seconds = century + 1 }), "want seconds, from 0 to", false},
		{both(held(func(*ipam.Binding) {}), held(func(k *ipam.Binding) { k.Key = "db" })), "sticky[1]: 10.1.0.9 is held for db, and for another in sticky[0]", false},
		{both(held(func(*ipam.Binding) {}), held(func(k *ipam.Binding) { k.Address = addr("10.1.0.10") })),
			"sticky[1]: 10.1.0.10 is a second address of", true},
		{reserved("10.1.0.9/24", ""), "is not a subnet", false},
		{reserved("::ffff:10.1.0.9/128", ""), "is not a subnet", false},
		{reserved("10.9.0.0/24", ""), "reserved 10.9.0.0/24 is not in any range", true},
		{both(reserved("10.1.0.9/32", ""), reserved("10.1.0.9/32", "web")), "and in reserved[0] for another: want one key, or none", false},
	} {
		s := &Store{DataDir: inMemory(t), Sets: sets(t, "10.1.0.0/24", "fd00::/64"), Log: testLog(t)}
		add(t, s, "a")
		_, err := s.Import(context.Background(), "net", tc.b, false, false)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("want %q: %v", tc.want, err)
		}
		if b := look(t, s); len(b.Leases) != 2 || len(b.Sticky)+len(b.Reserved) > 0 {
			t.Errorf("%s: there is %+v", tc.want, b)
		}
		if _, err := s.Import(context.Background(), "net", tc.b, true, false); (err == nil) != tc.force {
			t.Errorf("%s: with force: %v", tc.want, err)
		}
	}
}

// A hold that is from the future holds as a new one does, and not for longer.
func TestImportOfTheFuture(t *testing.T) {
	s := &Store{DataDir: inMemory(t), Sets: small(t, "10.1.0.0/29"), Log: testLog(t)}
	k := ipam.Binding{Address: addr("10.1.0.2"), Key: "web", IfName: "eth0", Seconds: 3600,
		Since: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)}
	if _, err := s.Import(context.Background(), "net", &ipam.Book{Sticky: []ipam.Binding{k}}, false, false); err != nil {
		t.Fatal(err)
	}
	if b := look(t, s); len(b.Sticky) != 1 || time.Until(b.Sticky[0].Since) > 0 ||
		time.Until(b.Sticky[0].Until) > time.Hour || time.Until(b.Sticky[0].Until) < 50*time.Minute {
		t.Errorf("held is %+v", b.Sticky)
	}
	if got := add(t, s, "other"); got[0] == "10.1.0.2" {
		t.Error("another gets it")
	}
	// So does one that a clock has written that was wrong by more than a time.Duration holds.
	r := record{TTL: 3600, Since: k.Since.Unix()}
	if left := r.left(&directory{wall: time.Now().Unix()}); left != time.Hour {
		t.Errorf("it is held for %v more", left)
	}
}

// A lease is dropped of the owner that is named, and of no other one that has the address by now.
func TestDrop(t *testing.T) {
	s := &Store{DataDir: inMemory(t), Sets: small(t, "10.1.0.0/24"), Log: testLog(t)}
	add(t, s, "a")
	mine := ipam.Lease{Address: addr("10.1.0.2"), ContainerID: "a", IfName: "eth0"}
	former := mine
	former.ContainerID = "b"
	if err := s.Drop(t.Context(), "net", former); err == nil || !strings.Contains(err.Error(), "10.1.0.2 now belongs to a eth0") {
		t.Errorf("a former owner's: %v", err)
	}
	if got := leases(t, s.DataDir); len(got) != 1 {
		t.Errorf("there is %v", got)
	}
	if err := s.Drop(t.Context(), "net", mine); err != nil {
		t.Error(err)
	}
	if got := leases(t, s.DataDir); len(got) != 0 {
		t.Errorf("there is %v", got)
	}
	if err := s.Drop(t.Context(), "net", mine); err == nil {
		t.Error("none was dropped")
	}
	if err := s.Forget(t.Context(), "net", mine.Address); err == nil {
		t.Error("no record was forgotten")
	}
}

// No call leaves a file open.
func TestOpenFiles(t *testing.T) {
	files := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	for what, call := range faultCalls {
		s := faultStore(faultDir(t), testLog(t))
		before := files()
		if _, err := call(t.Context(), s); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if after := files(); after != before {
			t.Errorf("%s: %d files are open, %d before", what, after, before)
		}
	}
}
