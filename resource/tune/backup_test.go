package tune

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"golang.org/x/sys/unix"
)

// A file that the reference plugin wrote is restored from once, whatever is in it, and goes.
func TestTuningFromReference(t *testing.T) {
	w, dir := tuningWorld(t), t.TempDir()
	bare := Tuning{Owner: contract.Owner, Link: "eth0", DataDir: dir}
	file := filepath.Join(dir, "c1_eth0.json")
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(w *kernel.World) {
		t.Helper()
		if err := bare.Remove(t.Context(), w); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(file); err == nil {
			t.Error("the file is left")
		}
	}
	before := contract.State(t, w)
	old, _ := rtnl.LinkByName(w.Container, "eth0")
	contract.Container(t, w, "ip link set eth0 mtu 1300 promisc on allmulticast on txqueuelen 5 address 02:00:00:00:00:09")
	put(fmt.Sprintf("{\n \"mac\": %q,\n \"promisc\": false,\n \"mtu\": 1500,\n \"allmulti\": false,\n \"txQLen\": 1000\n}",
		strings.ToUpper(old.MAC.String())))
	remove(w)
	if after := contract.State(t, w); after != before {
		t.Errorf("left: %s", contract.Difference(before, after))
	}
	for _, odd := range []string{"", "{", "[]", `{"mac":"x","mtu":-1,"txQLen":-1}`, `{"mac":3}`} {
		put(odd)
		remove(w)
	}
	put(`{"mtu":1300}`)
	remove(&kernel.World{Host: w.Host, Store: w.Store})
	if err := unix.Mkfifo(file, 0o600); err != nil {
		t.Fatal(err)
	}
	remove(w)
	// The path of the namespace now leads to another container's.
	put(`{"mtu":1300}`)
	bare.Seen = "02:00:00:00:00:77"
	remove(w)
	bare.Seen = strings.ToUpper(old.MAC.String())
	put(`{"txQLen":1000}`)
	contract.Container(t, w, "ip link set eth0 txqueuelen 5")
	remove(w)
	// An ADD of ours: the file is of an earlier container.
	put(`{"mtu":1300}`)
	contract.Must(t, w, Tuning{Owner: contract.Owner, Link: "eth0", DataDir: dir,
		Sysctls: netSysctls(t, "net.core.somaxconn", "501")})
	remove(w)
	if after := contract.State(t, w); after != before {
		t.Errorf("left: %s", contract.Difference(before, after))
	}
}
