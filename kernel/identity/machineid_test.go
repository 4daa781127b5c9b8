package identity

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// The same attachment has another MAC address and another UUID on another machine, also where only the host name tells.
func TestMachineID(t *testing.T) {
	o := spec.Owner{Network: "net", ContainerID: "c", IfName: "eth0"}
	etc := t.TempDir()
	if err := unix.Mount(etc, "/etc", "", unix.MS_BIND, ""); err != nil { // of this test's host
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount("/etc", unix.MNT_DETACH) })
	id := filepath.Join(etc, "machine-id")
	var macs, uuids [][]byte
	for _, text := range []string{"1111\n", "2222\n", ""} {
		if err := os.WriteFile(id, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		mac, uuid := MAC("cont", o), UUID(o)
		for i := range macs {
			if bytes.Equal(macs[i], mac) || bytes.Equal(uuids[i], uuid[:]) {
				t.Errorf("machine-id %q: MAC %v, UUID %x, as on another machine", text, mac, uuid)
			}
		}
		if again := MAC("cont", o); !bytes.Equal(again, mac) {
			t.Errorf("machine-id %q: %v, then %v", text, mac, again)
		}
		macs, uuids = append(macs, mac), append(uuids, uuid[:])
	}
}
