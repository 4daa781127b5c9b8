package hostdev

import (
	"strings"
	"testing"
)

// FuzzDeviceAt: each way in which a path selects a device is one of a name without a directory, or of a directory.
func FuzzDeviceAt(f *testing.F) {
	for _, path := range []string{"/sys/devices/pci0000:00/0000:00:03.0/net/eth0", "/sys/devices/virtual/net/veth0/",
		"/sys/devices/net/x", "/sys/devices/virtual/net/../../..", "/net/eth0", "", "/sys/class/net/eth0"} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		for _, d := range DeviceAt("key", path) {
			byName := d.Link != ""
			if byName && (d.Path != "" || strings.Contains(d.Link, "/") || !strings.HasPrefix(path, devicesDir)) ||
				!byName && !strings.HasPrefix(path, d.Path) {
				t.Errorf("%q selects %+v", path, d)
			}
		}
	})
}
