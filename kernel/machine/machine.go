// Package machine tells this machine and this boot from others. It knows nothing of networks.
package machine

import (
	"bytes"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// BootID tells this boot from others.
func BootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
}

// ReadLine is what stands in a small file; empty where it cannot be read. It is read by hand: os.ReadFile takes three
// times as many system calls, and every ADD reads some.
func ReadLine(path string) string {
	var buf [64]byte
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	n, _ := unix.Read(fd, buf[:])
	return string(bytes.TrimSpace(buf[:max(n, 0)]))
}

// ID is what this machine is told from others by.
func ID() string {
	if id := ReadLine("/etc/machine-id"); id != "" {
		return id
	}
	name, _ := os.Hostname()
	return name
}
