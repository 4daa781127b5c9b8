package record

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/spec"
)

// FuzzRecord: a record of any content is replaced, found by its owner and removed like another.
func FuzzRecord(f *testing.F) {
	for _, s := range []string{"", "{", `{"link":"veth0"}`, "null", "\x00\x00", `{"link":3}`} {
		f.Add([]byte(s))
	}
	o := spec.Owner{Network: "net", ContainerID: "c", IfName: "eth0"}
	other := spec.Owner{Network: "other", ContainerID: "c", IfName: "eth0"}
	type value struct {
		Link string `json:"link"`
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		m := Store{Dir: "/run/fuzz"} // in memory
		if err := errors.Join(os.RemoveAll(m.Dir), os.Mkdir(m.Dir, 0o700)); err != nil {
			t.Fatal(err)
		}
		path := m.file("kind", o)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		var v, want value
		there, err := m.Get("kind", o, &v)
		if whole := json.Unmarshal(content, &want) == nil; err != nil || there != whole || there && v != want {
			t.Errorf("%q: %+v, %v, %v", content, v, there, err)
		}
		records, err := m.Records("kind", "net")
		if err != nil || string(records[identity.OwnerHash(o)]) != string(content) || len(records) != 1 {
			t.Errorf("%q: records %q, %v", content, records, err)
		}

		if err := m.Put("kind", o, value{"eth7"}); err != nil {
			t.Fatal(err)
		}
		if there, err := m.Get("kind", o, &v); err != nil || !there || v.Link != "eth7" {
			t.Errorf("%q was replaced by %+v, %v, %v", content, v, there, err)
		}

		if err := os.WriteFile(m.file("kind", other), content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := m.Sweep("net", func(string, [8]byte) bool { return false }); err != nil {
			t.Error(err)
		}
		left, err := os.ReadDir(m.Dir)
		if err != nil || len(left) != 1 || left[0].Name() != filepath.Base(m.file("kind", other)) {
			t.Errorf("%q: GC left %v, %v", content, left, err)
		}
	})
}

// FuzzHistory: whatever the files of a history hold, an address that others held is not taken for a new one.
func FuzzHistory(f *testing.F) {
	for _, s := range []string{"", "0000000000000001\n", "7fffffffffffffff\n", "-000000000000001\n", "\xff\xff", "\x01"} {
		for file := range uint8(4) {
			f.Add(file, []byte(s))
		}
	}
	f.Fuzz(func(t *testing.T, file uint8, content []byte) {
		if err := os.RemoveAll("/run/fuzz"); err != nil {
			t.Fatal(err)
		}
		h := Store{Dir: "/run/fuzz/memory"}.History("br0")
		held, fresh := netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("10.2.0.3")
		if err := h.Begin(); err != nil {
			t.Fatal(err)
		}
		names := []string{"made", "ledger", "ports", "10.2.0.0"}
		if err := os.WriteFile(filepath.Join(h.dir, names[file%4]), content, 0o600); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := h.Hold(held); err != nil {
				t.Fatal(err)
			}
		}
		if err := h.Hold(fresh); err != nil {
			t.Fatal(err)
		}
		for _, ledger := range []int64{1, uptime()} {
			if h.First(ledger, held) || h.First(ledger, fresh, held) || h.First(0, fresh) || h.First(ledger) {
				t.Errorf("%s is %q, and an address that was held twice is new to ledger %d", names[file%4], content, ledger)
			}
		}
		if first := h.First(1, fresh) && h.First(2, fresh); first {
			t.Errorf("%s is %q: two ledgers have the addresses", names[file%4], content)
		}

		ports := h.Ports()
		h.SetPorts(ports)
		if again := h.Ports(); !slices.Equal(ports, again) {
			t.Errorf("ports %v are written as %v", ports, again)
		}
	})
}
