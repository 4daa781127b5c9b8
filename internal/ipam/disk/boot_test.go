package disk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/ipam"
	"golang.org/x/sys/unix"
)

// reboot gives this host another boot ID, until the end of the test.
func reboot(t *testing.T, id string) {
	t.Helper()
	const where = "/proc/sys/kernel/random/boot_id"
	path := filepath.Join(t.TempDir(), "boot_id")
	if err := os.WriteFile(path, []byte(id+"\n"), 0o444); err != nil {
		t.Fatal(err)
	}
	before := thisBoot()
	if err := unix.Mount(path, where, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(where, unix.MNT_DETACH) })
	if thisBoot() == before {
		t.Fatal("the boot ID is the same still")
	}
}

// cache is what the runtime's library remembers of an attachment.
func cache(t *testing.T, network, id, ifName, netns string) {
	t.Helper()
	cacheEntry(t, network+"-"+id+"-"+ifName,
		map[string]any{"kind": "cniCacheV1", "containerId": id, "ifName": ifName, "networkName": network, "netns": netns})
}

func cacheEntry(t *testing.T, name string, entry map[string]any) {
	t.Helper()
	b, err := json.Marshal(entry)
	if err != nil {
		t.Fatal(err)
	}
	const dir = "/var/lib/cni/results"
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(path) })
}

// A restarted container has its old ID, and takes its lease over.
func TestOwnLeaseOfAnEarlierBoot(t *testing.T) {
	s := &Store{DataDir: t.TempDir(), Sets: sets(t, "10.1.0.0/24", "fd00::/64"), Log: testLog(t)}
	add(t, s, "a")
	add(t, s, "b")
	add(t, s, "c")
	reboot(t, "11111111-1111-1111-1111-111111111111")
	s.Netns = nstest.NewNS(t)
	if got := add(t, s, "b"); !slices.Equal(got, []string{"10.1.0.3", "fd00::3"}) {
		t.Errorf("got %s, want b's own", got)
	}
	if !audit(t, s) {
		t.Error("the index does not count")
	}
	if _, err := s.Allocate(context.Background(), owner("b")); err == nil {
		t.Error("taken over, and had again")
	}
	if got := add(t, s, "d"); got[0] != "10.1.0.5" {
		t.Errorf("d got %s, for the others may come back", got)
	}
	// What it asks for beats what it had, and what it had goes.
	s.Requested = []netip.Addr{addr("10.1.0.99"), addr("fd00::4")}
	if got := add(t, s, "c"); !slices.Equal(got, []string{"10.1.0.99", "fd00::4"}) {
		t.Errorf("got %s", got)
	}
	if got := leases(t, s.DataDir); got["10.1.0.4"] != "" || len(got) != 8 {
		t.Errorf("leases: %v", got)
	}
	// So does an address that no range has any more.
	reboot(t, "22222222-2222-2222-2222-222222222222")
	s.Requested = nil
	s.Sets = sets(t, "10.1.0.0/24")
	if got := add(t, s, "c"); got[0] != "10.1.0.99" {
		t.Errorf("got %s", got)
	}
	if got := leases(t, s.DataDir); got["fd00::4"] != "" || len(got) != 7 {
		t.Errorf("leases: %v", got)
	}
	audit(t, s)
}

// A full range takes what earlier boots left behind, and nothing of this boot.
func TestExhaustedByAnEarlierBoot(t *testing.T) {
	s := &Store{DataDir: t.TempDir(), Sets: sets(t, "10.1.0.0/29"), Log: testLog(t)}
	for _, id := range []string{"a", "b", "c"} {
		add(t, s, id)
	}
	reboot(t, "11111111-1111-1111-1111-111111111111")
	add(t, s, "d")
	add(t, s, "e") // full: .2 .3 .4 of before, .5 .6 of now
	if err := s.Status(context.Background(), "net"); err != nil {
		t.Errorf("STATUS: %v", err)
	}
	if got := leases(t, s.DataDir); len(got) != 5 {
		t.Errorf("STATUS changed the leases: %v", got)
	}
	if got := add(t, s, "f"); got[0] != "10.1.0.2" {
		t.Errorf("got %s", got)
	}
	add(t, s, "g")
	add(t, s, "h")
	if _, err := s.Allocate(context.Background(), owner("i")); !errors.Is(err, ipam.ErrExhausted) {
		t.Errorf("full of this boot's: %v", err)
	}
	if err := s.Status(context.Background(), "net"); !errors.Is(err, ipam.ErrExhausted) {
		t.Errorf("STATUS: %v", err)
	}
	audit(t, s)
}

// An address that is asked for is a range of one.
func TestRequestedOfAnEarlierBoot(t *testing.T) {
	s := &Store{DataDir: t.TempDir(), Sets: sets(t, "10.1.0.0/24"), Log: testLog(t)}
	add(t, s, "a")
	reboot(t, "11111111-1111-1111-1111-111111111111")
	s.Requested = []netip.Addr{addr("10.1.0.2")}
	add(t, s, "b")
	if got := leases(t, s.DataDir); got["10.1.0.2"] != "b\r\neth0" {
		t.Errorf("leases: %v", got)
	}
	audit(t, s)
}

// Nothing but a recorded boot, or a namespace that the runtime's cache names and that is gone, proves
// that a lease outlived its container: least of all the file's age.
func TestUnknownBoot(t *testing.T) {
	ctx := context.Background()
	s := &Store{DataDir: t.TempDir(), Sets: sets(t, "10.1.0.0/29"), Log: testLog(t)}
	alive := nstest.NewNS(t)
	for name, text := range map[string]string{
		"10.1.0.2": "nocache\r\neth0",
		"10.1.0.3": "alive\r\neth0",
		"10.1.0.4": "gone\r\neth0",
		"10.1.0.5": "old",
		"10.1.0.6": "x-y\r\neth0",
	} {
		put(t, s.DataDir, name, text)
		if err := os.Chtimes(filepath.Join(s.DataDir, "net", name), unixTime(0), unixTime(0)); err != nil {
			t.Fatal(err)
		}
	}
	cache(t, "net", "alive", "eth0", alive)
	cache(t, "net", "old", "eth0", "/run/netns/gone")
	cache(t, "net-x", "y", "eth0", "/run/netns/gone") // the same file name as net and x-y
	for _, id := range []string{"nocache", "alive", "x-y"} {
		if _, err := s.Allocate(ctx, owner(id)); err == nil || !strings.Contains(err.Error(), "already has") {
			t.Errorf("ADD twice of %s: %v", id, err)
		}
	}
	if _, err := s.Allocate(ctx, owner("new")); !errors.Is(err, ipam.ErrExhausted) {
		t.Errorf("nothing proves that a lease is stale, and ADD says %v", err)
	}
	cache(t, "net", "gone", "eth0", "/run/netns/gone")
	s.Netns = alive
	if got := add(t, s, "gone"); got[0] != "10.1.0.4" {
		t.Errorf("its own lease of a namespace that is gone: got %s", got)
	}
	// It is attached anew, and the cache knows the attachment before: that does not count.
	if _, err := s.Allocate(ctx, owner("new")); !errors.Is(err, ipam.ErrExhausted) {
		t.Errorf("all are in use, and ADD says %v", err)
	}
	cache(t, "net", "nocache", "eth0", "/run/netns/gone")
	if got := add(t, s, "new"); got[0] != "10.1.0.2" {
		t.Errorf("got %s", got)
	}
	if got := leases(t, s.DataDir); len(got) != 5 {
		t.Errorf("leases: %v", got)
	}
	audit(t, s)
}

// A full range takes what containers of this boot left behind whose namespace is gone, says the runtime's cache, and
// nothing else. So does an address that is asked for.
func TestExhaustedByTheDead(t *testing.T) {
	ctx := context.Background()
	const gone = "/run/netns/gone"
	if err := os.MkdirAll("/run/netns", 0o755); err != nil {
		t.Fatal(err)
	}
	fill := func(t *testing.T) *Store {
		s := &Store{DataDir: t.TempDir(), Sets: sets(t, "10.1.0.0/29"), Log: testLog(t)}
		alive := nstest.NewNS(t)
		for id, netns := range map[string]string{"alive": alive, "hidden": "/run/nowhere/gone", "anew": "/run/netns/anew",
			"nocache": gone, "dead": gone} {
			s.Netns = netns
			add(t, s, id)
		}
		cache(t, "net", "alive", "eth0", alive)
		cache(t, "net", "hidden", "eth0", "/run/nowhere/gone") // another's mounts
		cache(t, "net", "anew", "eth0", gone)                  // of the attachment before, while ADD goes on
		s.Netns = alive
		if _, err := s.Allocate(ctx, owner("new")); !errors.Is(err, ipam.ErrExhausted) ||
			!strings.Contains(err.Error(), "the state of 4 of the containers is unknown (fairlead ipam ls net)") {
			t.Errorf("nothing is proven, and ADD says %v", err)
		}
		if err := s.Status(ctx, "net"); !errors.Is(err, ipam.ErrExhausted) {
			t.Errorf("nothing is proven, and STATUS says %v", err)
		}
		return s
	}
	for name, entry := range map[string]map[string]any{
		"netns": {"netns": gone},
		"result": {"result": map[string]any{"cniVersion": "1.0.0", "interfaces": []map[string]string{
			{"name": "veth0"}, {"name": "eth0", "sandbox": gone}}}},
	} {
		for _, asked := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " asked ", asked), func(t *testing.T) {
				s := fill(t)
				entry["kind"], entry["containerId"], entry["ifName"], entry["networkName"] = "cniCacheV1", "dead", "eth0", "net"
				cacheEntry(t, "net-dead-eth0", entry)
				if err := s.Status(ctx, "net"); err != nil {
					t.Errorf("STATUS: %v", err)
				}
				var want string
				for a, who := range leases(t, s.DataDir) {
					if who == "dead\r\neth0" {
						want = a
					}
				}
				if asked {
					s.Requested = []netip.Addr{addr(want)}
				}
				if got := add(t, s, "new"); got[0] != want {
					t.Errorf("got %s, want %s", got, want)
				}
				if _, err := s.Allocate(ctx, owner("newer")); err == nil {
					t.Errorf("newer got one too: %v", leases(t, s.DataDir))
				}
				if !audit(t, s) {
					t.Error("the index does not count")
				}
			})
		}
	}
}

// What the reference leased has no namespace written down: an entry of the cache counts that is not older than the
// lease.
func TestTheReferencesDead(t *testing.T) {
	s := &Store{DataDir: t.TempDir(), Sets: sets(t, "10.1.0.0/30"), Log: testLog(t)}
	cache(t, "net", "a", "eth0", "/run/netns/gone")
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes("/var/lib/cni/results/net-a-eth0", old, old); err != nil {
		t.Fatal(err)
	}
	put(t, s.DataDir, "10.1.0.2", "a\r\neth0")
	if _, err := s.Allocate(context.Background(), owner("new")); !errors.Is(err, ipam.ErrExhausted) {
		t.Errorf("the cache knows an earlier attachment, and ADD says %v", err)
	}
	cache(t, "net", "a", "eth0", "/run/netns/gone")
	add(t, s, "new")
}

// What somebody else makes while we watch is of this boot, though nobody wrote that down.
func TestOthersLeasesAreOfThisBoot(t *testing.T) {
	s := &Store{DataDir: t.TempDir(), Sets: sets(t, "10.1.0.0/29"), Log: testLog(t)}
	for _, id := range []string{"a", "b", "c", "d"} {
		add(t, s, id)
	}
	put(t, s.DataDir, "10.1.0.6", "other\r\neth0")
	del(t, s, "nobody") // looks at the directory, and sees it
	// A file that is made anew under the same name is another one.
	path := filepath.Join(s.DataDir, "net", "10.1.0.2")
	reboot(t, "11111111-1111-1111-1111-111111111111")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	put(t, s.DataDir, "10.1.0.2", "a\r\neth0")
	put(t, s.DataDir, "10.1.0.3", "b\r\neth0") // and so is one that is written again
	for _, want := range []string{"10.1.0.6", "10.1.0.4", "10.1.0.5"} {
		s.Requested = []netip.Addr{addr(want)}
		add(t, s, "of-now-"+want)
	}
	s.Requested = nil
	if _, err := s.Allocate(context.Background(), owner("z")); !errors.Is(err, ipam.ErrExhausted) {
		t.Errorf("the files of a and b are new, and may be of this boot: %v", err)
	}
	if got := leases(t, s.DataDir); got["10.1.0.2"] != "a\r\neth0" || got["10.1.0.3"] != "b\r\neth0" {
		t.Errorf("leases: %v", got)
	}
}

// GC takes what is not valid, whatever the boot.
// clause: P22
func TestSweepAfterReboot(t *testing.T) {
	s := &Store{DataDir: t.TempDir(), Sets: sets(t, "10.1.0.0/29"), Log: testLog(t)}
	add(t, s, "a")
	add(t, s, "b")
	reboot(t, "11111111-1111-1111-1111-111111111111")
	add(t, s, "c")
	if err := s.Sweep(context.Background(), "net", owners("b", "c")); err != nil {
		t.Fatal(err)
	}
	if got := leases(t, s.DataDir); len(got) != 2 || got["10.1.0.2"] != "" {
		t.Errorf("left: %v", got)
	}
	audit(t, s)
}

// After a power cut a lease file may have its name, size and time still, and zeros for its content.
func TestPowerCut(t *testing.T) {
	s := &Store{DataDir: t.TempDir(), Sets: sets(t, "10.1.0.0/30"), Log: testLog(t)}
	add(t, s, "a")
	path := filepath.Join(s.DataDir, "net", "10.1.0.2")
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(path, make([]byte, st.Size()), 0o600),
		os.Chtimes(path, st.ModTime(), st.ModTime())); err != nil {
		t.Fatal(err)
	}
	reboot(t, "11111111-1111-1111-1111-111111111111")
	if got := add(t, s, "b"); got[0] != "10.1.0.2" {
		t.Errorf("got %s", got)
	}
	audit(t, s)
}

// A host that does not tell boots apart has no earlier ones.
func TestNoBootID(t *testing.T) {
	s := &Store{DataDir: t.TempDir(), Sets: sets(t, "10.1.0.0/24"), Log: testLog(t)}
	add(t, s, "a")
	reboot(t, "11111111-1111-1111-1111-111111111111")
	const where = "/proc/sys/kernel/random/boot_id"
	if err := unix.Mount(t.TempDir(), filepath.Dir(where), "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(filepath.Dir(where), unix.MNT_DETACH) })
	if thisBoot() != 0 {
		t.Fatal("the boot ID is there still")
	}
	if _, err := s.Allocate(context.Background(), owner("a")); err == nil ||
		!strings.Contains(err.Error(), "already has 10.1.0.2") {
		t.Errorf("ADD twice: %v", err)
	}
	if got := add(t, s, "b"); got[0] != "10.1.0.3" {
		t.Errorf("got %s", got)
	}
	del(t, s, "a")
	del(t, s, "b")
	if got := leases(t, s.DataDir); len(got) > 0 {
		t.Errorf("left: %v", got)
	}
}

// A pipe in the runtime's cache says nothing of a lease, and is not waited for.
func TestNamespaceOfPipe(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(dir, "net-a-eth0"), 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan bool)
	go func() {
		_, ok := namespaceOf(dir, "net", entry{}, lease{text: "a\r\neth0"})
		done <- ok
	}()
	select {
	case ok := <-done:
		if ok {
			t.Error("it says something")
		}
	case <-nstest.Context(t).Done():
		t.Fatal("it is waited for")
	}
}

// A lease file that was written after a reboot is of this boot, whatever the index says of the file that it replaced. So
// its container is not gone. The index reads some files anew and goes by its entry for others.
func TestNewerFileThanEntry(t *testing.T) {
	for when, scanned := range map[string]bool{"before the scan of this boot": false, "after it": true} {
		t.Run(when, func(t *testing.T) {
			s := &Store{DataDir: t.TempDir(), Sets: sets(t, "10.1.0.0/29"), Log: testLog(t)}
			add(t, s, "a")
			reboot(t, "11111111-1111-1111-1111-111111111111")
			if scanned {
				add(t, s, "b")
			}
			put(t, s.DataDir, "10.1.0.2", "a\r\neth0")
			later := time.Now().Add(time.Second)
			if err := os.Chtimes(filepath.Join(s.DataDir, "net", "10.1.0.2"), later, later); err != nil {
				t.Fatal(err)
			}
			for i := len(leases(t, s.DataDir)); i < 5; i++ {
				add(t, s, fmt.Sprint("n", i))
			}
			if r, err := s.Allocate(t.Context(), owner("z")); !errors.Is(err, ipam.ErrExhausted) {
				t.Errorf("got %v, %v", r, err)
			}
			if got := leases(t, s.DataDir); got["10.1.0.2"] != "a\r\neth0" {
				t.Errorf("left: %v", got)
			}
		})
	}
}

// An earlier boot's lease of the address that is the gateway today is not taken over, and takes no room in the range.
func TestLeaseOnTodaysGateway(t *testing.T) {
	s := &Store{DataDir: t.TempDir(), Sets: sets(t, "10.1.0.0/24"), Log: testLog(t)}
	if got := add(t, s, "a"); got[0] != "10.1.0.2" {
		t.Fatal(got)
	}
	s.Sets[0].Ranges[0].Gateway = addr("10.1.0.2")
	if free, size, err := s.Room(t.Context(), "net"); err != nil || free != size {
		t.Errorf("room for %v of %v, %v", free, size, err)
	}
	reboot(t, "11111111-1111-1111-1111-111111111111")
	if got := add(t, s, "a"); got[0] == "10.1.0.2" {
		t.Errorf("got the gateway's address %s", got)
	}
	if got := leases(t, s.DataDir); len(got) != 1 {
		t.Errorf("left: %v", got)
	}
}

// STATUS counts an address as free that rests, or that is held for a sticky key: ADD gives it when no other is left.
func TestStatusOfResting(t *testing.T) {
	for name, key := range map[string]*Sticky{"rests": nil, "held": {Key: "k", TTL: time.Hour}} {
		t.Run(name, func(t *testing.T) {
			s := &Store{DataDir: t.TempDir(), Sets: sets(t, "10.1.0.0/30"), Cooldown: time.Hour, Sticky: key, Log: testLog(t)}
			add(t, s, "a")
			if err := s.Status(t.Context(), "net"); !errors.Is(err, ipam.ErrExhausted) {
				t.Errorf("while it is in use: %v", err)
			}
			del(t, s, "a")
			s.Sticky = nil
			if err := s.Status(t.Context(), "net"); err != nil {
				t.Error(err)
			}
			if got := add(t, s, "b"); got[0] != "10.1.0.2" {
				t.Errorf("got %s", got)
			}
		})
	}
}
