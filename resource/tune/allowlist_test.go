package tune

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/resource/sysctl"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

func TestAllowList(t *testing.T) {
	file := filepath.Join(t.TempDir(), "allowlist.conf")
	list := sysctl.AllowList{File: file, Sysctls: netSysctls(t, "net.core.somaxconn", "1",
		"net.ipv4.conf.IFNAME.arp_accept", "1")}
	for _, tt := range []struct{ text, say string }{
		{"", "sysctl.net.core.somaxconn: not allowed by " + file},
		{"net.core\n", "sysctl.net.ipv4.conf.IFNAME.arp_accept: not allowed by " + file + `, whose patterns are ["net.core"]`},
		{"  ^net.core.somaxconn$ \r\n\n\t^net.ipv4.conf.IFNAME.[a-z_]*$", ""},
		{"somax|arp", ""},
		{"eth0\nsomax", "IFNAME"}, // matched as it was written
		{".*\n(\n", "line 2"},
		{"(?i)^NET", ""},
	} {
		if err := os.WriteFile(file, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		err := list.Verify(t.Context(), nil)
		if tt.say == "" && err != nil || tt.say != "" &&
			(err == nil || !strings.Contains(err.Error(), tt.say) || spec.AsError(err, 0).Code != spec.CodeConfig) {
			t.Errorf("%q: %v, want %q", tt.text, err, tt.say)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := list.Verify(t.Context(), nil); err != nil {
		t.Errorf("without the file: %v", err)
	}
	if err := unix.Mkfifo(file, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := list.Verify(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "so none is") {
		t.Errorf("a list that cannot be read: %v", err)
	}
}
