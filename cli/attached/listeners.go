package attached

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// Holder is the program that has a socket, and its PID; whoever may not see that is told so.
func Holder(inode uint32) string { return Holders()(inode) }

// Holders answers as holder does, about many sockets. It reads all of /proc once, when it is asked first.
func Holders() func(inode uint32) string {
	pids := sync.OnceValue(func() map[string]string { // by what the link of a descriptor says
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
			return "a process that cannot be seen"
		}
		name, _ := os.ReadFile("/proc/" + pid + "/comm")
		return fmt.Sprintf("process %s (PID %s)", strings.TrimSpace(string(name)), pid)
	}
}
