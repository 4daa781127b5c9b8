package daemon

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/spec"
)

// FuzzLeaseFile: a file of any content is a lease that a server can have given, and stays as it is, or it is put aside.
func FuzzLeaseFile(f *testing.F) {
	log := slog.Default()
	slog.SetDefault(slog.New(slog.DiscardHandler))
	f.Cleanup(func() { slog.SetDefault(log) })

	o := spec.Owner{Network: "net", ContainerID: "c", IfName: "eth0"}
	whole := leaseFile{Format: format, Protocol: dhcp.DHCPv4, Ask: dhcp.Ask{Owner: o}, Netns: "/run/netns/c", Boot: "b",
		Uptime: time.Minute, Lease: &dhcp.Lease{Addresses: []dhcp.Address{{Prefix: netip.MustParsePrefix("10.1.0.2/24"),
			Valid: time.Hour}}, Valid: time.Hour, T1: time.Minute, T2: 2 * time.Minute}}
	seed, err := json.Marshal(whole)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	for _, s := range []string{"", "{", "null", "\x00", `{"format":2}`, `{"format":1}`, string(seed[:len(seed)/2]),
		`{"format":1,"protocol":"dhcpv4","ask":{"owner":{"Network":"net"}},"lease":{"addresses":[{}]}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		s := store{"/run/fuzz"} // in memory
		if err := errors.Join(os.RemoveAll(s.dir), os.Mkdir(s.dir, 0o700)); err != nil {
			t.Fatal(err)
		}
		path := s.path(o, dhcp.DHCPv4)
		write := func(path string) {
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write(path)
		write(path + unfinished)
		records, err := s.load()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(path + unfinished); err == nil {
			t.Errorf("%q: what was not finished is left", content)
		}
		_, inPlace := os.Lstat(path)
		_, aside := os.Lstat(filepath.Join(s.dir, broken, filepath.Base(path)))
		if (inPlace == nil) == (aside == nil) {
			t.Errorf("%q: in its place: %v, aside: %v", content, inPlace, aside)
		}
		if len(records) == 0 {
			return
		}

		r := records[0]
		if len(records) > 1 || inPlace != nil || r.Ask.Owner != o || r.Protocol != dhcp.DHCPv4 || r.possible() != nil {
			t.Errorf("%q: %+v", content, records)
		}
		r.awake()
		if err := s.save(r); err != nil {
			t.Fatal(err)
		}
		again, err := s.load()
		if err != nil || len(again) != 1 {
			t.Fatalf("%q was written anew: %+v, %v", content, again, err)
		}
		before, _ := json.Marshal(r)
		after, _ := json.Marshal(again[0])
		if string(before) != string(after) {
			t.Errorf("%q: %s is written as %s", content, before, after)
		}
	})
}
