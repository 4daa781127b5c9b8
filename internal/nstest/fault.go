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
		unix.SYS_UNLINKAT: "unlinkat"}
	maps.DeleteFunc(all, func(_ uint32, name string) bool { return len(names) > 0 && !slices.Contains(names, name) })
	return all
}

// WithFaults runs cmd, and asks fault of each of its system calls of those names, or of all that are in answerable, one
// at a time: an error that it names is what the program gets, and the kernel does nothing. Each question costs several
// switches between processes. It stands on seccomp's notifications (Linux 5.5).
func WithFaults(cmd *exec.Cmd, fault func(Syscall) unix.Errno, names ...string) error {
	calls := answerable(names)
	done, stop, answered := make(chan error), make(chan struct{}), make(chan error, 1)
	onDisposableThread(func() { // with its filter, which cannot be taken off
		fd, err := filter(calls)
		if err != nil {
			answered <- nil
			done <- err
			return
		}
		starter := uint32(unix.Gettid())
		go func() { answered <- answer(fd, starter, stop, calls, fault) }()
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
	return install(numbers, unix.SECCOMP_RET_USER_NOTIF, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER)
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

// answer answers until stop is closed. What the thread with that number asks, which starts the program, is never a
// fault.
func answer(fd int, starter uint32, stop chan struct{}, calls map[uint32]string,
	fault func(Syscall) unix.Errno) error {
	defer unix.Close(fd)
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 50)
		if n == 0 || err == unix.EINTR {
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
			select { // it was killed meanwhile, or there is nobody any more
			case <-stop:
				return nil
			default:
				continue
			}
		} else if errno != 0 {
			return errno
		}
		a := response{id: q.id, flags: notifContinue}
		if q.pid != starter {
			if errno := fault(q.call(calls[uint32(q.nr)])); errno != 0 {
				a = response{id: q.id, errno: -int32(errno)}
			}
		}
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), notifSend,
			uintptr(unsafe.Pointer(&a))); errno != 0 &&
			errno != unix.ENOENT {
			return errno
		}
	}
}

// call is the system call of that name that q is about. A file system that copies what is written may need room for a
// file that is there, too.
func (q notification) call(name string) Syscall {
	by, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", q.pid))
	s := Syscall{Name: name, PID: int(q.pid), By: strings.TrimSpace(string(by))}
	switch name {
	case "openat":
		s.Path = textAt(q.pid, q.args[1])
		s.Room = q.args[2]&unix.O_CREAT != 0 || q.args[2]&unix.O_TMPFILE == unix.O_TMPFILE
	case "mkdirat":
		s.Path = textAt(q.pid, q.args[1])
		s.Room = true
	case "linkat":
		s.Room = true
	case "write", "pwrite64":
		s.Path, _ = os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", q.pid, int32(q.args[0])))
		first, _, _ := strings.Cut(strings.TrimPrefix(s.Path, "/"), "/")
		s.Room = filepath.IsAbs(s.Path) && !slices.Contains([]string{"proc", "sys", "dev"}, first)
	}
	return s
}

// textAt is the text at an address of a process.
func textAt(pid uint32, at uint64) string {
	f, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return ""
	}
	defer f.Close()
	b := make([]byte, unix.PathMax)
	n, _ := f.ReadAt(b, int64(at))
	text, _, _ := strings.Cut(string(b[:n]), "\x00")
	return text
}
