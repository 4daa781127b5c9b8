// Package nstest runs tests in a throw-away host: network and mount namespaces of their own, with empty
// state directories, so that a test touches nothing of the machine. For an ordinary user it adds a user
// namespace.
package nstest

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/hide"
	"golang.org/x/sys/unix"
)

const marker = "FAIRLEAD_NSTEST"

// Keep names, in the environment, directories below the state directories that a throw-away host is to have like the
// machine, separated by colons.
const Keep = "FAIRLEAD_NSTEST_KEEP"

// stateDirs get an empty tmpfs each, so that defaults such as /var/lib/cni can be used as they are.
var stateDirs = []string{"/run", "/var/lib/cni", "/etc/cni", "/opt/cni"}

// Main is for TestMain: it runs each of the package's tests in a throw-away host of its own, several of them side by
// side, and exits with the status of all.
func Main(m *testing.M) {
	flag.Parse()
	if os.Getenv(marker) == "" {
		if flag.Lookup("test.list").Value.String() != "" {
			os.Exit(m.Run())
		}
		if h := severalHosts(); h != nil {
			status, err := h.run()
			if err != nil {
				fmt.Fprintln(os.Stderr, "nstest:", err)
				status = max(status, 1)
			}
			os.Exit(status)
		}
	}
	if err := Enter(); err != nil {
		fmt.Fprintln(os.Stderr, "nstest:", err)
		os.Exit(1)
	}
	os.Exit(inHost(m))
}

// Enter puts this program into a throw-away host: it runs itself again in one and exits with the status
// of that run. Inside, it returns.
func Enter() error {
	if os.Getenv(marker) != "" {
		os.Unsetenv(marker)
		return furnish()
	}
	cmd := ThrowAway(os.Args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if slices.Contains(os.Args, "-test.fuzzworker") { // which go test talks to over three more files
		for fd := range uintptr(3) {
			cmd.ExtraFiles = append(cmd.ExtraFiles, os.NewFile(3+fd, "fuzz"))
		}
	}
	runtime.LockOSThread() // Pdeathsig follows the thread
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		os.Exit(max(exit.ExitCode(), 1))
	case err != nil:
		return fmt.Errorf("%w (it takes root, or user namespaces)", err)
	}
	os.Exit(0)
	return nil
}

// ThrowAway is this program again, in a throw-away host, where it has to call Enter. The thread that starts it has to
// last as long.
func ThrowAway(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), marker+"=1")
	cmd.Stdin = os.Stdin
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS,
		Pdeathsig:  syscall.SIGKILL,
	}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	return cmd
}

func furnish() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	kept, err := openKept()
	if err != nil {
		return err
	}
	for _, dir := range stateDirs {
		if err := hide.Dir(dir); err != nil {
			return err
		}
	}
	for dir, fd := range kept {
		if err := show(dir, fd); err != nil {
			return err
		}
	}
	if err := errors.Join(os.MkdirAll("/run/netns", 0o755), os.MkdirAll("/run/lock", 0o755)); err != nil {
		return err
	}
	// A sysfs of this network namespace; a user namespace may not be allowed one, and nothing here
	// depends on it.
	_ = unix.Mount("sysfs", "/sys", "sysfs", 0, "")
	return errors.Join(up(), probe())
}

// openKept opens the directories that Keep names, before others are laid over them.
func openKept() (map[string]int, error) {
	kept := map[string]int{}
	for _, dir := range filepath.SplitList(os.Getenv(Keep)) {
		real, err := filepath.EvalSymlinks(dir)
		if err != nil {
			return nil, err
		}
		if slices.Contains(stateDirs, real) {
			return nil, fmt.Errorf("%s itself is empty in a throw-away host: use a directory below it", dir)
		}
		above := strings.TrimSuffix(real, "/") + "/"
		if slices.ContainsFunc(stateDirs, func(state string) bool { return strings.HasPrefix(state, above) }) {
			continue // it stays visible, and bound again it would have the machine's state
		}
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: dir, Err: err}
		}
		kept[dir] = fd
	}
	return kept, nil
}

// show binds a directory that was opened to its path again.
func show(dir string, fd int) error {
	defer unix.Close(fd)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("/proc/self/fd/"+strconv.Itoa(fd), dir, "", unix.MS_BIND, ""); err != nil {
		return &os.PathError{Op: "bind", Path: dir, Err: err}
	}
	return nil
}

// probe has package net find out here which families there are. It asks once in a process, wherever that is; in a
// namespace whose lo is down, it would find no IPv6, and listen to IPv4 only from then on.
func probe() error {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		return err
	}
	return l.Close()
}

// up sets lo up by the oldest ioctl there is, so that this package depends on none that it tests.
func up() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr)
}

var serial atomic.Int64

// NewNS makes a network namespace for a container, bound to a path under /run/netns, and removes it at
// the end of the test.
func NewNS(t testing.TB) (path string) {
	t.Helper()
	path = filepath.Join("/run/netns", "c"+strconv.FormatInt(serial.Add(1), 10))
	if err := MakeNS(path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { RemoveNS(path) })
	return path
}

// MakeNS binds a new network namespace to path.
func MakeNS(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return err
	}
	f.Close()
	done := make(chan error)
	onDisposableThread(func() {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("unshare: %w", err)
			return
		}
		done <- unix.Mount(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), path, "", unix.MS_BIND, "")
	})
	if err := <-done; err != nil {
		os.Remove(path)
		return err
	}
	return nil
}

// onDisposableThread runs fn on a thread that ends with it, which the process's first thread does not: it would keep a
// namespace.
func onDisposableThread(fn func()) {
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
		if unix.Gettid() != unix.Getpid() {
			fn()
			return
		}
		begun := make(chan struct{})
		go func() {
			runtime.LockOSThread() // on another thread, for the first one is held until here
			close(begun)
			fn()
		}()
		<-begun
		runtime.UnlockOSThread()
	}()
}

// RemoveNS unbinds path; the namespace dies with its last process.
func RemoveNS(path string) error {
	return errors.Join(unix.Unmount(path, unix.MNT_DETACH), os.Remove(path))
}

// Run runs a command and returns its output, for witnesses such as ip(8) and nft(8).
func Run(t testing.TB, name string, args ...string) string {
	t.Helper()
	return run(t, "", name, args)
}

// RunIn runs a command inside the namespace at path.
func RunIn(t testing.TB, path, name string, args ...string) string {
	t.Helper()
	return run(t, path, name, args)
}

func run(t testing.TB, path, name string, args []string) string {
	t.Helper()
	out, err := Output(path, exec.Command(name, args...))
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// Output runs a command inside the namespace at path and returns what it prints. A process is of the namespace of the
// thread that starts it, which saves a start of nsenter(1).
func Output(path string, cmd *exec.Cmd) (out []byte, err error) {
	err = In(path, func() error { out, err = cmd.CombinedOutput(); return err })
	return out, err
}

// In calls a function on a thread of its own inside the namespace at path; the empty path is here.
func In(path string, fn func() error) error {
	if path == "" {
		return fn()
	}
	done := make(chan error)
	onDisposableThread(func() {
		done <- func() error {
			f, err := os.Open(path)
			if err != nil {
				return err
			}
			defer f.Close()
			if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("enter %s: %w", path, err)
			}
			return fn()
		}()
	})
	return <-done
}
