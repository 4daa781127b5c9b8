package run

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/resolv"
	"golang.org/x/sys/unix"
)

// process is a command in a network namespace and a mount namespace of its own.
type process struct {
	argv   []string
	netns  string
	resolv string // file to show as /etc/resolv.conf; empty: the host's
	stdio  [3]*os.File

	cmd  *exec.Cmd
	done chan error
}

// start starts the command. The kernel kills the command when this program dies. It sends that signal when the
// thread that started the command exits, so that thread does nothing but wait for the command.
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

// run starts the command, forwards signals to it, and returns its exit status.
func (p *process) run(sigs <-chan os.Signal) (status int, err error) {
	if err := p.start(); err != nil {
		if errors.Is(err, syscall.ENOEXEC) || errors.Is(err, fs.ErrPermission) {
			return 0, app.Fail(app.ExitNotExecutable,
				"It is not a program for this machine, or its interpreter does not exist.", "%w", err)
		}
		return 0, err
	}
	for {
		select {
		case s := <-sigs:
			if !typed(s) {
				p.cmd.Process.Signal(s) // a command that has ended needs no signal
			}
		case err := <-p.done:
			return ExitStatus(err)
		}
	}
}

// enter moves the calling thread to the command's namespaces.
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
	// Mounts made here stay here. An unmount on the host must reach this copy, or it would keep a removed network
	// namespace alive.
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

// showSys mounts a sysfs of this network namespace, so that /sys/class/net shows its links. The control groups of
// the old one are kept. Where mounting is not allowed, as in some user namespaces, only this view is missing.
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

// ExitStatus returns the exit status that a shell gives for how a command ended.
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

// findCommand searches for the program name, and fails with a shell's exit statuses.
func findCommand(name string) error {
	_, err := exec.LookPath(name)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, exec.ErrDot):
		return app.Fail(app.ExitNoCommand, "Write ./"+name+" if you mean that file.",
			"%s: only in the working directory", name)
	case errors.Is(err, fs.ErrPermission):
		return app.Fail(app.ExitNotExecutable, "Make it executable, or name the interpreter before it.",
			"%s: permission denied", name)
	}
	return app.Fail(app.ExitNoCommand, "Check its spelling. It is searched in PATH.", "%s: command not found",
		name)
}
