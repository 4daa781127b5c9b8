package procsys

import (
	"path/filepath"
	"strings"
	"testing"
)

// FuzzPath: the path of a key stays below /proc/sys, and the key with slashes is the same.
func FuzzPath(f *testing.F) {
	for _, key := range []string{"net.ipv4.ip_forward", "net/ipv4/conf/eth0.5/rp_filter", "net.ipv4.conf.eth0/5.rp_filter",
		"net.ipv4.conf.a.b.c.rp_filter", "net/../kernel/panic", "...", "net.ipv4.conf.././.x", "/", ""} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		path, err := Path(key)
		if err != nil {
			return
		}
		below, ok := strings.CutPrefix(path, "/proc/sys/")
		if !ok || below == "" || filepath.Clean(path) != path {
			t.Errorf("%q is %q", key, path)
		}
		if !strings.Contains(below, "/") {
			return // a name alone may have dots, which separate then
		}
		if again, err := Path(below); err != nil || again != path {
			t.Errorf("%q is %q, and that is %q, %v", key, path, again, err)
		}
	})
}
