package attached

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// Holder returns the program that has a socket, and its PID. If that may not be seen, the text says so.
func Holder(inode uint32) string { return Holders()(inode) }

// Holders returns Holder for many sockets: the first call reads all of /proc, later ones reuse it.
func Holders() func(inode uint32) string {
	pids := sync.OnceValue(func() map[string]string { // keyed by the text of the descriptor's link
		pids := map[string]string{}
		fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
		for _, fd := range fds {
			to, err := os.Readlink(fd)
			if err == nil && strings.HasPrefix(to, "socket:") && pids[to] == "" {
				pids[to] = strings.Split(fd, "/")[2]
			}
		}
		return pids
	})
	return func(inode uint32) string {
		pid, ok := pids()[fmt.Sprintf("socket:[%d]", inode)]
		if !ok {
			return "a process that is not visible"
		}
		name, _ := os.ReadFile("/proc/" + pid + "/comm")
		return fmt.Sprintf("process %s (PID %s)", strings.TrimSpace(string(name)), pid)
	}
}
