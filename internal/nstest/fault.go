package nstest

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Syscall is one that a program asks of the kernel.
type Syscall struct {
	Name string // one of answerable
	PID  int    // of the thread that asks
	By   string // the program's name, of 15 bytes at most
	Path string // of openat, mkdirat, write and pwrite64
	Room bool   // it may need room in a file system: to make a file, or to write to one
}

// answerable are the system calls that WithFaults can answer in the kernel's stead: those of these names, or all.
func answerable(names []string) map[uint32]string {
	all := map[uint32]string{unix.SYS_SOCKET: "socket", unix.SYS_SETNS: "setns", unix.SYS_OPENAT: "openat",
		unix.SYS_IOCTL: "ioctl",
		unix.SYS_FSTAT: "fstat", unix.SYS_GETSOCKOPT: "getsockopt", unix.SYS_SENDTO: "sendto",
		unix.SYS_MKDIRAT: "mkdirat", unix.SYS_LINKAT: "linkat", unix.SYS_WRITE: "write",
		unix.SYS_PWRITE64: "pwrite64", unix.SYS_RECVMSG: "recvmsg", unix.SYS_RENAMEAT: "renameat",
		unix.SYS_UNLINKAT: "unlinkat", unix.SYS_FSYNC: "fsync", unix.SYS_COPY_FILE_RANGE: "copy_file_range",
		unix.SYS_FCHMOD: "fchmod", unix.SYS_ACCEPT4: "accept4", unix.SYS_GETDENTS64: "getdents64",
		unix.SYS_RECVFROM: "recvfrom"}
	maps.DeleteFunc(all, func(_ uint32, name string) bool { return len(names) > 0 && !slices.Contains(names, name) })
	return all
}

// WithFaults runs cmd, and asks fault of each of its system calls of those names, or of all that are in answerable, one
// at a time: an error that it names is what the program gets, and the kernel does nothing. Each question costs several
// switches between processes. Signals do not interrupt a question (Linux 5.19).
func WithFaults(cmd *exec.Cmd, fault func(Syscall) unix.Errno, names ...string) error {
	return hold(cmd, answerable(names), func(h *Held) error { return h.Answer(fault(h.Syscall())) })
}

// Faults are errors of the kernel that a call may get where the machine lacks something.
func Faults() []unix.Errno {
	return []unix.Errno{unix.ENOSPC, unix.EIO, unix.ENOBUFS, unix.EINTR, unix.EPERM, unix.EMFILE, unix.ENOMEM}
}

// WithHeld runs cmd, and calls each with every system call of those numbers, which waits until its Answer. Signals do
// not interrupt the wait (Linux 5.19).
func WithHeld(cmd *exec.Cmd, each func(*Held) error, numbers ...uint32) error {
	calls := map[uint32]string{}
	for _, nr := range numbers {
		calls[nr] = ""
	}
	return hold(cmd, calls, each)
}

// waitKillable is SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV. Without it a signal makes the program ask again: on a slow
// machine, one of the Go runtime that comes every 10 ms does so for ever.
const waitKillable = 1 << 5

func hold(cmd *exec.Cmd, calls map[uint32]string, each func(*Held) error) error {
	done, stop, answered := make(chan error), make(chan struct{}), make(chan error, 1)
	onDisposableThread(func() { // with its filter, which cannot be taken off
		fd, err := filter(calls)
		if err != nil {
			answered <- nil
			done <- err
			return
		}
		starter := uint32(unix.Gettid())
		go func() { answered <- receive(fd, starter, stop, calls, each) }()
		done <- cmd.Run()
	})
	err := <-done
	close(stop)
	return errors.Join(err, <-answered)
}

// Stopping calls a function on a thread of its own. Of the programs that it starts and traces, each stops before the
// system calls of those numbers, if the tracer set PTRACE_O_TRACESECCOMP. All other calls run as fast as ever, unlike
// those of PTRACE_SYSCALL. The function itself, on its thread, can make none of the calls.
func Stopping(calls []uintptr, fn func() error) error {
	done := make(chan error)
	onDisposableThread(func() {
		_, err := install(calls, unix.SECCOMP_RET_TRACE, 0)
		if err == nil {
			err = fn()
		}
		done <- err
	})
	return <-done
}

// filter has the calling thread, and what it starts, wait for an answer to the system calls.
func filter(calls map[uint32]string) (fd int, err error) {
	var numbers []uintptr
	for nr := range calls {
		numbers = append(numbers, uintptr(nr))
	}
	return install(numbers, unix.SECCOMP_RET_USER_NOTIF, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|waitKillable)
}

// install has seccomp do an action at the system calls of the calling thread, and of what it starts.
func install(calls []uintptr, action uint32, flags uintptr) (fd int, err error) {
	code := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}} // the system call's number
	for i, nr := range calls {
		code = append(code, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: uint8(len(calls) - i),
			K: uint32(nr)})
	}
	code = append(code, unix.SockFilter{Code: unix.BPF_RET, K: unix.SECCOMP_RET_ALLOW},
		unix.SockFilter{Code: unix.BPF_RET, K: action})
	prog := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	r, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags,
		uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(code)
	if errno != 0 {
		return -1, fmt.Errorf("seccomp: %w", errno)
	}
	return int(r), nil
}

// What linux/seccomp.h calls seccomp_notif and seccomp_notif_resp.
type (
	notification struct {
		id    uint64
		pid   uint32
		flags uint32
		nr    int32
		arch  uint32
		ip    uint64
		args  [6]uint64
	}
	response struct {
		id    uint64
		val   int64
		errno int32
		flags uint32
	}
)

const (
	notifRecv     = 0xc0502100
	notifSend     = 0xc0182101
	notifContinue = 1
)

// A Held is a system call of a program, which waits for an answer.
type Held struct {
	Number uint32
	Args   [6]uint64
	PID    int // of the thread that asks
	name   string
	id     uint64
	fd     int
}

// Answer has the program get an error. 0 lets the kernel do what the call asks. A program that has ended meanwhile
// needs none, and h.fd may be closed then, or another file.
func (h *Held) Answer(errno unix.Errno) error {
	a := response{id: h.id, errno: -int32(errno)}
	if errno == 0 {
		a.flags = notifContinue
	}
	_, _, got := unix.Syscall(unix.SYS_IOCTL, uintptr(h.fd), notifSend, uintptr(unsafe.Pointer(&a)))
	if got != 0 && !slices.Contains([]unix.Errno{unix.ENOENT, unix.EBADF, unix.ENOTTY}, got) {
		return got
	}
	return nil
}

// receive calls each with system calls until stop is closed. What the thread with that number asks, which starts the
// program, is not held.
func receive(fd int, starter uint32, stop chan struct{}, calls map[uint32]string, each func(*Held) error) error {
	defer unix.Close(fd)
	for {
		asks := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		_, err := unix.Poll(asks, 50)
		if asks[0].Revents == unix.POLLHUP { // all have ended, and before Linux 6.11 the next ioctl would wait for ever
			<-stop
			return nil
		}
		if asks[0].Revents == 0 || err == unix.EINTR {
			select {
			case <-stop:
				return nil
			default:
				continue
			}
		}
		if err != nil {
			return err
		}
		var q notification
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), notifRecv,
			uintptr(unsafe.Pointer(&q))); errno == unix.ENOENT || errno == unix.EINTR {
			select { // it was killed meanwhile, or no process is left
			case <-stop:
				return nil
			default:
				continue
			}
		} else if errno != 0 {
			return errno
		}
		h := &Held{Number: uint32(q.nr), Args: q.args, PID: int(q.pid), name: calls[uint32(q.nr)], id: q.id, fd: fd}
		if q.pid == starter {
			err = h.Answer(0)
		} else {
			err = each(h)
		}
		if err != nil {
			return err
		}
	}
}

// Syscall is what the call asks. A file system that copies what is written may need room for a file that is there, too.
func (h *Held) Syscall() Syscall {
	by, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", h.PID))
	s := Syscall{Name: h.name, PID: h.PID, By: strings.TrimSpace(string(by))}
	switch h.name {
	case "openat":
		s.Path = h.Text(1)
		s.Room = h.Args[2]&unix.O_CREAT != 0 || h.Args[2]&unix.O_TMPFILE == unix.O_TMPFILE
	case "mkdirat":
		s.Path = h.Text(1)
		s.Room = true
	case "linkat":
		s.Room = true
	case "write", "pwrite64":
		s.Path, _ = os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", h.PID, int32(h.Args[0])))
		first, _, _ := strings.Cut(strings.TrimPrefix(s.Path, "/"), "/")
		s.Room = filepath.IsAbs(s.Path) && !slices.Contains([]string{"proc", "sys", "dev"}, first)
	}
	return s
}

// Text is the text that an argument points to.
func (h *Held) Text(arg int) string {
	text, _, _ := strings.Cut(string(h.Bytes(arg, unix.PathMax)), "\x00")
	return text
}

// Bytes are those that an argument points to, at most so many.
func (h *Held) Bytes(arg int, most uint64) []byte {
	f, err := os.Open(fmt.Sprintf("/proc/%d/mem", h.PID))
	if err != nil {
		return nil
	}
	defer f.Close()
	b := make([]byte, most)
	n, _ := f.ReadAt(b, int64(h.Args[arg]))
	return b[:n]
}
