package iptables_test

import (
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/resource/filter/iptables"
	"golang.org/x/sys/unix"
)

// A host without the program says which package has it and which key asked.
func TestIPTablesIsMissing(t *testing.T) {
	w := contract.NewWorld(t)
	need := iptables.Program{Backend: "ipMasqBackend", Table: "nat"}
	contract.Verify(t, w, need)
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		defer unix.Unmount(dir, unix.MNT_DETACH)
	}
	t.Setenv("PATH", "/nowhere")
	if err := need.Verify(t.Context(), w); err == nil || !strings.Contains(err.Error(), "package iptables") || !strings.Contains(err.Error(), `ipMasqBackend: "iptables"`) {
		t.Errorf("%v", err)
	}
}
