package tap

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrLabel means that SELinux does not know a context, or does not allow this program to create a file in it.
var ErrLabel = errors.New("SELinux refuses the context")

// LabelledVar is the environment variable that makes a process of this program attach its descriptor 3 to a tap (see
// Give). Its value is the flags of TUNSETIFF, a colon, and the tap's name.
const LabelledVar = "FAIRLEAD_TAP"

// attachAs is attach in another context of SELinux. A tap has that of the process that makes it, and a process of
// several threads, which every Go program is, may take another one only as it is executed: so this program executes
// itself. It then has the file and nothing to say but that; the namespace, which is the file's, it need not know.
func attachAs(label string, fd int, name string, flags uint16) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the context of what is executed next is the thread's, and goes with it
		done <- func() error {
			if err := writeAll("/proc/thread-self/attr/exec", label); err != nil {
				return fmt.Errorf("%w: %w", ErrLabel, err)
			}
			n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
			if err != nil {
				return os.NewSyscallError("dup", err)
			}
			file := os.NewFile(uintptr(n), tunDevice)
			defer file.Close()
			p, err := os.StartProcess("/proc/self/exe", []string{"tap"}, &os.ProcAttr{
				Env:   []string{LabelledVar + "=" + strconv.Itoa(int(flags)) + ":" + name},
				Files: []*os.File{nil, nil, os.Stderr, file},
			})
			if errors.Is(err, unix.EACCES) {
				return fmt.Errorf("%w: %w", ErrLabel, err)
			}
			if err != nil {
				return err
			}
			state, err := p.Wait()
			if err != nil || state.Success() {
				return err
			}
			if code := state.ExitCode(); code > 0 {
				return fmt.Errorf("in the context %s: %w", label, unix.Errno(code))
			}
			return fmt.Errorf("in the context %s: %v", label, state)
		}()
	}()
	return <-done
}

// Give attaches descriptor 3 to a tap. It runs in the child process that makes a tap under an SELinux label, and
// asked is the value of LabelledVar. Give returns the child's exit status, which is the errno of the call.
func Give(asked string) int {
	flags, name, _ := strings.Cut(asked, ":")
	n, err := strconv.ParseUint(flags, 10, 16)
	if err == nil {
		err = attach(3, name, uint16(n))
	}
	var errno unix.Errno
	switch {
	case err == nil:
		return 0
	case errors.As(err, &errno) && errno < 256:
		return int(errno)
	}
	return int(unix.EINVAL)
}

// attach gives an open tun device its link.
func attach(fd int, name string, flags uint16) error {
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	ifr.SetUint16(flags)
	return unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
}

func writeAll(path, text string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte(text))
	return err
}
