package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A cost is what a process took.
type cost struct {
	Time   time.Duration
	Memory int64 // KiB that were resident at most
}

// spawn runs a program once, and measures from before its process is made until it has been waited for. What
// goes in and out lies in memory: pipes and the goroutines that serve them would be measured too.
func spawn(path string, env []string, stdin []byte) (stdout []byte, c cost, err error) {
	var files [3]*os.File
	for i, name := range []string{"stdin", "stdout", "stderr"} {
		fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
		if err != nil {
			return nil, c, fmt.Errorf("memfd for %s: %w", name, err)
		}
		files[i] = os.NewFile(uintptr(fd), name)
		defer files[i].Close()
	}
	if _, err := files[0].Write(stdin); err != nil {
		return nil, c, err
	}
	if _, err := files[0].Seek(0, io.SeekStart); err != nil {
		return nil, c, err
	}
	attr := &syscall.ProcAttr{Env: append(os.Environ(), env...), Files: []uintptr{files[0].Fd(), files[1].Fd(), files[2].Fd()}}
	var status syscall.WaitStatus
	var used syscall.Rusage

	start := time.Now()
	pid, err := syscall.ForkExec(path, []string{path}, attr)
	if err == nil {
		for {
			if _, err = syscall.Wait4(pid, &status, 0, &used); err != syscall.EINTR {
				break
			}
		}
	}
	c.Time = time.Since(start)

	if err != nil {
		return nil, c, fmt.Errorf("%s: %w", path, err)
	}
	stdout, err = content(files[1])
	if err == nil && status != 0 {
		var stderr []byte
		stderr, err = content(files[2])
		err = fmt.Errorf("%s: status %#x: %s %s (%v)", path, status, stdout, stderr, err)
	}
	c.Memory = int64(used.Maxrss)
	return stdout, c, err
}

func content(f *os.File) ([]byte, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	b, err := io.ReadAll(f)
	return bytes.TrimSpace(b), err
}
