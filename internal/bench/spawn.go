package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A cost is what a process took.
type cost struct {
	Time      time.Duration
	Processor time.Duration // with what it started and waited for
	Memory    int64         // KiB that were resident at most; 0: not watched
}

// spawn runs a program once, and measures from before its process is made until it has been waited for. What
// goes in and out lies in memory: pipes and the goroutines that serve them would be measured too. One that is watched
// takes a little longer; a watching goroutine has a thread for itself.
func spawn(path string, env []string, stdin []byte, watched bool, args ...string) (stdout []byte, c cost, err error) {
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
	attr := &syscall.ProcAttr{Env: append(os.Environ(), env...),
		Files: []uintptr{files[0].Fd(), files[1].Fd(), files[2].Fd()},
		Sys:   &syscall.SysProcAttr{Ptrace: watched}}
	var status syscall.WaitStatus
	var usage syscall.Rusage

	start := time.Now()
	pid, err := syscall.ForkExec(path, append([]string{path}, args...), attr)
	if err == nil {
		c.Memory, err = wait(pid, &status, &usage)
	}
	c.Time = time.Since(start)
	c.Processor = time.Duration(usage.Utime.Nano() + usage.Stime.Nano())

	if err != nil {
		return nil, c, fmt.Errorf("%s: %w", path, err)
	}
	stdout, err = content(files[1])
	if err == nil && status != 0 {
		var stderr []byte
		stderr, err = content(files[2])
		err = fmt.Errorf("%s: status %#x: %s %s (%v)", filepath.Base(path), status, stdout, stderr, err)
	}
	return stdout, c, err
}

// wait returns when a process has ended, and where it is traced, what it had in memory at most: as it ends, for rusage
// counts what the process had that made it, and afterwards nothing is left to ask.
func wait(pid int, status *syscall.WaitStatus, usage *syscall.Rusage) (kibibytes int64, err error) {
	for traced := false; ; {
		if _, err := syscall.Wait4(pid, status, unix.WALL, usage); err == syscall.EINTR {
			continue
		} else if err != nil || !status.Stopped() {
			return kibibytes, err
		}
		signal := int(status.StopSignal())
		switch {
		case !traced: // its program has just been loaded
			if err := syscall.PtraceSetOptions(pid, unix.PTRACE_O_TRACEEXIT); err != nil && err != syscall.ESRCH {
				return 0, fmt.Errorf("watch a process: %w", err)
			}
			traced, signal = true, 0
		case status.TrapCause() == unix.PTRACE_EVENT_EXIT:
			signal, kibibytes = 0, peak(pid)
		}
		// A process that another thread of it ends does not stay stopped: ptrace(2) says ESRCH, and its end follows.
		if err := syscall.PtraceCont(pid, signal); err != nil && err != syscall.ESRCH {
			return 0, fmt.Errorf("watch a process: %w", err)
		}
	}
}

// peak is what a process has had in memory at most, in KiB.
func peak(pid int) (kibibytes int64) {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, after, _ := bytes.Cut(b, []byte("VmHWM:"))
	_, _ = fmt.Sscan(string(after), &kibibytes)
	return kibibytes
}

func content(f *os.File) ([]byte, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	b, err := io.ReadAll(f)
	return bytes.TrimSpace(b), err
}
