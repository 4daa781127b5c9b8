package grant

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/internal/plainfile"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// FuzzRead: a file of any content is a grant of this boot, or an error that says what to do. A grant is read as it was
// written.
func FuzzRead(f *testing.F) {
	boot, err := Boot()
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{
		"", "{", "null", "[]", "\x00\x00\x00", `{"boot":"another"}`,
		`{"boot":"BOOT"}`, `{"boot":"BOOT","ranges":["10.1.0.0/24"]`,
		`{"boot":"BOOT","missing":"the node has no podCIDR","hint":"Ask."}`,
		`{"cluster":"c","node":"n","boot":"BOOT","ranges":["10.1.0.0/24","fd00::/64"],"mtu":1450,"prefixes":["10.0.0.0/8"]}`,
	} {
		f.Add([]byte(s))
	}
	if err := os.MkdirAll(Dir, 0o755); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		content = replaceBoot(content, boot)
		if err := os.WriteFile(Path("net"), content, 0o644); err != nil {
			t.Fatal(err)
		}
		got, err := Read("net")
		if err != nil {
			var said *Error
			if !errors.As(err, &said) || said.Path != Path("net") || said.Why == "" || said.Hint == "" {
				t.Errorf("%q: %#v", content, err)
			}
			return
		}
		if got.Boot != boot || len(got.Ranges) == 0 {
			t.Errorf("%q: %+v", content, got)
		}
		if err := Write("net", *got); err != nil {
			t.Fatal(err)
		}
		again, err := Read("net")
		if err != nil || !reflect.DeepEqual(got, again) {
			t.Errorf("%q is %+v, and is written as %+v, %v", content, got, again, err)
		}
	})
}

// replaceBoot puts this boot where the content has BOOT, so that seeds last longer than a boot.
func replaceBoot(content []byte, boot string) []byte {
	return bytes.ReplaceAll(content, []byte("BOOT"), []byte(boot))
}

func TestRefusedGrants(t *testing.T) {
	boot, err := Boot()
	if err != nil {
		t.Fatal(err)
	}
	whole := Grant{Cluster: "c", Node: "n", Boot: boot, Ranges: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}}
	write := func(g Grant) {
		if err := Write("net", g); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(when, want string) {
		t.Helper()
		if _, err := Read("net"); err == nil || err.Error() != Path("net")+": "+want {
			t.Errorf("%s: %v, want %s", when, err, want)
		}
	}
	refused("none", "is missing: no agent has granted addresses to this node since it booted")

	write(whole)
	if got, err := Read("net"); err != nil || !reflect.DeepEqual(*got, whole) {
		t.Errorf("%+v, %v", got, err)
	}

	other := whole
	other.Boot = "another"
	write(other)
	refused("another boot", `is of boot "another", and this is boot `+boot+": the node booted since, and the agent has not run")

	empty := Grant{Boot: boot, Missing: "the node has no podCIDR", Hint: "Ask."}
	write(empty)
	refused("no range", "grants no range: the node has no podCIDR")
	var said *Error
	if _, err := Read("net"); !errors.As(err, &said) || said.Hint != "Ask." {
		t.Errorf("%#v", err)
	}
	if got, err := OfBoot("net"); err != nil || got.Missing != empty.Missing {
		t.Errorf("of this boot: %+v, %v", got, err)
	}

	text, err := os.ReadFile(Path("net"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(Path("net"), text[:len(text)/2], 0o644); err != nil {
		t.Fatal(err)
	}
	refused("cut short", "is no grant, or was cut short: unexpected end of JSON input")

	if err := os.Truncate(Path("net"), plainfile.MaxSize+1); err != nil {
		t.Fatal(err)
	}
	refused("endless", "cannot be read: it is no plain file of ours: it has more than 16777216 bytes")

	if err := errors.Join(os.Remove(Path("net")), syscall.Mkfifo(Path("net"), 0o600)); err != nil {
		t.Fatal(err)
	}
	refused("a pipe", "cannot be read: it is no plain file but a named pipe")
	if _, err := Read("net"); !errors.Is(err, plainfile.ErrNotPlain) {
		t.Errorf("the cause is lost: %v", err)
	}
}

// A writer in the agent changes its part of the grant, and the parts of other writers stay. What a killed agent left of a
// grant does not keep the next one from writing.
func TestChange(t *testing.T) {
	if err := os.MkdirAll(Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(Path("changed")+".new", []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := File{Network: "changed"}
	first := f.Change(func(g *Grant) { g.Ranges = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")} })
	second := f.Change(func(g *Grant) { g.Node = "n" })
	if err := errors.Join(first, second); err != nil {
		t.Fatal(err)
	}

	got, err := Read("changed")
	if err != nil || got.Node != "n" {
		t.Errorf("%+v, %v", got, err)
	}

	text, err := os.ReadFile(Path("changed"))
	if err != nil || !bytes.HasSuffix(text, []byte("}\n")) {
		t.Errorf("people read %q, %v", text, err)
	}
	before, err := os.Stat(Path("changed"))
	if err != nil {
		t.Fatal(err)
	}
	err = f.Change(func(*Grant) {})
	if after, serr := os.Stat(Path("changed")); err != nil || serr != nil || !os.SameFile(before, after) {
		t.Errorf("a grant that says the same was written: %v, %v", err, serr)
	}

	if err := os.MkdirAll(Path("changed")+".new/theirs", 0o755); err != nil {
		t.Fatal(err)
	}
	err = f.Change(func(g *Grant) { g.Node = "m" })
	if err == nil || !strings.Contains(err.Error(), Path("changed")) {
		t.Errorf("in place of a directory: %v", err)
	}

	if err := os.MkdirAll(Path("folder")+"/theirs", 0o755); err != nil {
		t.Fatal(err)
	}
	err = Write("folder", Grant{})
	if _, left := os.Stat(Path("folder") + ".new"); err == nil || !errors.Is(left, fs.ErrNotExist) {
		t.Errorf("where the grant is a directory: %v, left %v", err, left)
	}
}

// A grant that cannot be written as JSON leaves the one that is there.
func TestUnwritable(t *testing.T) {
	f := File{Network: "net"}
	ranges := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}
	if err := f.Change(func(g *Grant) { g.Ranges = ranges }); err != nil {
		t.Fatal(err)
	}
	err := f.Change(func(g *Grant) { g.Ranges, g.Source = nil, json.RawMessage("{") })
	got, reading := Read("net")
	if err == nil || reading != nil || !slices.Equal(got.Ranges, ranges) {
		t.Errorf("%v, and it is %+v, %v", err, got, reading)
	}
}

// Without the kernel's identifier of the boot, no grant counts, and none is written.
func TestUnknownBoot(t *testing.T) {
	f := File{Network: "net"}
	add := func(g *Grant) { g.Ranges = append(g.Ranges, netip.MustParsePrefix("10.1.0.0/24")) }
	if err := f.Change(add); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", "/proc/sys/kernel/random", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := Read("net"); err == nil || !strings.Contains(err.Error(), "cannot be compared with this boot") {
		t.Errorf("read: %v", err)
	}
	if err := f.Change(add); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("change: %v", err)
	}
}

// The parts of several writers add up.
func TestConcurrentChanges(t *testing.T) {
	const writers, changes = 8, 25
	f := File{Network: "net"}
	var all sync.WaitGroup
	for range writers {
		all.Go(func() {
			for range changes {
				if err := f.Change(func(g *Grant) { g.Reserve++ }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if g, err := OfBoot("net"); err != nil || g.Reserve != writers*changes {
		t.Errorf("%+v, %v", g, err)
	}
}

// The pool of an address is the one whose subnet has it. Containers may have the addresses of ranges and pins.
func TestOf(t *testing.T) {
	g := Grant{Pools: []Pool{{Name: "a", Prefix: netip.MustParsePrefix("10.1.0.0/16")}, {Name: "b", Prefix: netip.MustParsePrefix("10.2.0.0/16")}},
		Ranges: []netip.Prefix{netip.MustParsePrefix("10.1.7.0/24")}, Pins: []netip.Addr{netip.MustParseAddr("10.2.0.9")}}
	for addr, want := range map[string]struct {
		pool string
		has  bool
	}{"10.1.7.1": {"a", true}, "10.1.8.1": {"a", false}, "10.2.0.9": {"b", true}, "10.2.0.8": {"b", false}, "10.3.0.1": {"", false}} {
		a := netip.MustParseAddr(addr)
		if p, ok := g.Of(a); p.Name != want.pool || ok != (want.pool != "") || g.Has(a) != want.has {
			t.Errorf("%s: of %q, %v", addr, p.Name, g.Has(a))
		}
	}
}

// The networks are those that have a file, by its name.
func TestNetworks(t *testing.T) {
	if got := Networks(); len(got) > 0 {
		t.Errorf("without a grant: %q", got)
	}
	for _, network := range []string{"a", "b.c"} {
		if err := Write(network, Grant{}); err != nil {
			t.Fatal(err)
		}
	}
	if got := Networks(); !slices.Equal(got, []string{"a", "b.c"}) {
		t.Errorf("%q", got)
	}
}
