package run

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/fairlead-cni/fairlead/cli/app"
	"github.com/fairlead-cni/fairlead/cli/resolv"
	"golang.org/x/sys/unix"
)

// A process is a command in a network namespace and a mount namespace of its own.
type process struct {
	argv   []string
	netns  string
	resolv string // a file to show as /etc/resolv.conf; empty: the host's
	stdio  [3]*os.File

	cmd  *exec.Cmd
	done chan error
}

// start starts the command. It is killed when this program dies: the kernel sends that signal at the death
// of the thread that started it, which therefore waits for it and does nothing else.
func (p *process) start() error {
	p.cmd = exec.Command(p.argv[0], p.argv[1:]...)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = p.stdio[0], p.stdio[1], p.stdio[2]
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	p.done = make(chan error, 1)
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := p.enter()
		if err == nil {
			err = p.cmd.Start()
		}
		started <- err
		if err == nil {
			p.done <- p.cmd.Wait()
		}
	}()
	return <-started
}

// enter takes the calling thread where the command shall be.
func (p *process) enter() error {
	fd, err := unix.Open(p.netns, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open netns", Path: p.netns, Err: err}
	}
	defer unix.Close(fd)
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return os.NewSyscallError("enter network namespace", err)
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("unshare mount namespace", err)
	}
	// What is mounted here stays here; what the host unmounts goes here too, or a removed network namespace
	// would live on in the copy.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return os.NewSyscallError("make mounts private", err)
	}
	showSys(filepath.Dir(p.netns))
	if p.resolv != "" {
		if err := unix.Mount(p.resolv, resolv.EtcResolv, "", unix.MS_BIND, ""); err != nil {
			return &fs.PathError{Op: "mount over", Path: resolv.EtcResolv, Err: err}
		}
	}
	return nil
}

// showSys mounts a sysfs of this network namespace, so that /sys/class/net shows its links. The control
// groups below the old one are kept. Where that is not allowed, as in some user namespaces, nothing is
// lost but this view.
func showSys(scratch string) {
	const cgroups = "/sys/fs/cgroup"
	if unix.Mount("sysfs", scratch, "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "") != nil {
		return
	}
	_ = unix.Mount(cgroups, filepath.Join(scratch, "fs/cgroup"), "", unix.MS_BIND|unix.MS_REC, "")
	if unix.Mount(scratch, "/sys", "", unix.MS_MOVE, "") != nil {
		_ = unix.Unmount(scratch, unix.MNT_DETACH)
	}
}

// ExitStatus is the exit status that a shell gives to how a command ended.
func ExitStatus(err error) (int, error) {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0, nil
	case !errors.As(err, &exit):
		return app.ExitFailure, err
	}
	ws := exit.Sys().(syscall.WaitStatus)
	if ws.Signaled() {
		return app.ExitSignal + int(ws.Signal()), nil
	}
	return ws.ExitStatus(), nil
}

// findCommand looks argv[0] up, with a shell's exit statuses for what it cannot run.
func findCommand(name string) error {
	_, err := exec.LookPath(name)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, exec.ErrDot):
		return app.Fail(app.ExitNoCommand, "Write ./"+name+" if that one is meant.",
			"%s: only in the working directory", name)
	case errors.Is(err, fs.ErrPermission):
		return app.Fail(app.ExitNotExecutable, "Make it executable, or name the interpreter before it.",
			"%s: permission denied", name)
	}
	return app.Fail(app.ExitNoCommand, "Look for a slip in its name; it is searched in PATH.", "%s: command not found",
		name)
}
