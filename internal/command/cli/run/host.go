package run

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/resolv"
	"github.com/fairlead-cni/fairlead/internal/hide"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// A throw-away host is a set of namespaces with empty state directories. What happens in it does not affect the
// machine, and ends with it. For an ordinary user it includes a user namespace.

// HostCommand is `fairlead host`.
func HostCommand(a *app.App) *cobra.Command {
	c := &cobra.Command{
		Use: "host [--] [COMMAND [ARGUMENT...]]", GroupID: "run",
		Short: "Run a command, or a shell, in a throw-away host",
		Long: `Run COMMAND (default: your shell) as root of a throw-away host. It has network, mount, IPC and UTS namespaces of
its own, with empty /run, /var/lib/cni, /var/log, /etc/cni/net.d and /opt/cni. When COMMAND ends, everything that it made
there is gone. Your machine is not changed.

If CNI_PATH is not set, the plugins there are fairlead's own, unless you install others in /opt/cni/bin. Plugins that
fairlead does not have come from the other usual directories. An ordinary user needs no sudo if user namespaces are
allowed.

Exit status: that of COMMAND, 126 or 127 if it cannot be run, 1 if the host cannot be made.`,
		Example: `  fairlead host -- fairlead run -p 8080:80 -- COMMAND
  fairlead host`,
		RunE: func(c *cobra.Command, args []string) (err error) {
			if len(args) == 0 {
				args = []string{"/bin/sh"}
				if sh := os.Getenv("SHELL"); sh != "" {
					args[0] = sh
				}
			}
			if err := findCommand(args[0]); err != nil {
				return err
			}
			a.Status, err = InHost(a, args)
			return err
		},
	}
	c.Flags().SetInterspersed(false)
	return c
}

const hostName = "become-a-host" // hidden from `fairlead help`

// InHost runs argv in a throw-away host and returns its exit status.
func InHost(a *app.App, argv []string) (int, error) {
	runtime.LockOSThread() // the parent-death signal is that of the thread
	cmd := exec.Command("/proc/self/exe", append([]string{hostName, "--"}, argv...)...)
	cmd.Args[0] = "fairlead"
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.Stdin, a.Stdout, a.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		Pdeathsig:  unix.SIGKILL,
	}
	if privileged() != nil {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	// Processes that the command leaves behind become children of this one.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 0, os.NewSyscallError("prctl subreaper", err)
	}
	// The terminal's signals reach the command too, which handles them.
	signal.Notify(make(chan os.Signal, 1), unix.SIGINT, unix.SIGQUIT)
	others := make(chan os.Signal, 1)
	signal.Notify(others, unix.SIGTERM, unix.SIGHUP)
	if err := cmd.Start(); err != nil {
		return 0, app.Fail(app.ExitFailure, hintUserns, "make a throw-away host: %w", err)
	}
	go func() {
		for s := range others {
			cmd.Process.Signal(s)
		}
	}()
	err := cmd.Wait()
	endChildren()
	return ExitStatus(err)
}

const hintUserns = "This needs root or user namespaces: see user.max_user_namespaces, " +
	"kernel.unprivileged_userns_clone and kernel.apparmor_restrict_unprivileged_userns in sysctl(8)."

// endChildren ends every descendant of this process.
func endChildren() {
	me := strconv.Itoa(os.Getpid())
	for endAll(func(pid string) bool { return parent(pid) == me }) {
		for { // a zombie stays a child and would be found again
			if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); pid <= 0 && err != unix.EINTR {
				break
			}
		}
	}
}

// HostInsideCommand returns the hidden command that is the first process of a throw-away host: it mounts the
// directories, and then executes the command.
func HostInsideCommand() *cobra.Command {
	c := &cobra.Command{
		Use: hostName, Hidden: true, Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := furnish(); err != nil {
				return app.Fail(app.ExitFailure, hintUserns, "prepare the throw-away host: %w", err)
			}
			path, err := exec.LookPath(args[0])
			if err != nil {
				return err
			}
			return &fs.PathError{Op: "run", Path: path, Err: syscall.Exec(path, args, os.Environ())}
		},
	}
	c.Flags().SetInterspersed(false)
	return c
}

func furnish() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("make mounts private", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=0755"); err != nil {
		return &fs.PathError{Op: "mount over", Path: "/run", Err: err}
	}
	for _, dir := range []string{"/run/netns", "/run/lock", "/run/.scratch"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	for _, dir := range []string{"/var/lib/cni", "/var/log", "/etc/cni", "/opt/cni"} {
		if err := hide.Dir(dir); err != nil {
			return err
		}
	}
	if err := errors.Join(os.MkdirAll("/etc/cni/net.d", 0o755), os.MkdirAll(netconf.StateDir, 0o755),
		os.WriteFile(netconf.ThrownAway, nil, 0o644)); err != nil {
		return err
	}
	if err := placeResolv(); err != nil {
		return err
	}
	showSys("/run/.scratch")
	if err := unix.Sethostname([]byte("throw-away")); err != nil {
		return os.NewSyscallError("sethostname", err)
	}
	own, err := kernel.Open("")
	if err != nil {
		return err
	}
	defer own.Close()
	return rtnl.SetLink(own, "lo", rtnl.LinkChange{Up: true})
}

// placeResolv creates an empty file at the target of the host's resolv.conf if that is below /run, as with
// systemd-resolved. A container's resolv.conf is mounted over that.
func placeResolv() error {
	to, err := os.Readlink(resolv.EtcResolv)
	if err != nil {
		return nil // not a link, or missing
	}
	if !filepath.IsAbs(to) {
		to = filepath.Join(filepath.Dir(resolv.EtcResolv), to)
	}
	if !strings.HasPrefix(filepath.Clean(to), "/run/") {
		return nil
	}
	return errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, nil, 0o644))
}

// parent returns the parent's PID of a process.
func parent(pid string) string {
	b, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return ""
	}
	// 4711 (a name (with anything)) S 1 …
	if f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:]); len(f) > 1 {
		return string(f[1])
	}
	return ""
}
