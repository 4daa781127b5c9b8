package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"golang.org/x/sys/unix"
)

// jailed is the first argument of this program where it is the first process of a jail.
const jailed = "in-jail"

// memory is how many bytes of addresses a process in a jail may have: a mutant may allocate without end.
const memory = 6 << 30

// jail is a test binary in a jail: a mutant may delete another path than its package means, or end another process. In
// the jail all files are read-only except those in new directories, and there are no other processes and no network.
// The directory work gets a new one, and dir is where the tests begin.
func jail(work, dir, binary string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", append([]string{jailed, work, binary}, args...)...)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
	}
	if uid, gid := os.Getuid(), os.Getgid(); uid != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
		cmd.SysProcAttr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN}
	}
	return cmd
}

// inJail is the first process of a jail: it furnishes the jail, runs the tests and returns their exit status.
func inJail(work, binary string, args []string) (status int, err error) {
	tmp := filepath.Join(work, "t")
	if err := furnish(tmp); err != nil {
		return 0, fmt.Errorf("make a jail for the tests: %w", err)
	}
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stdout
	return nstest.AsInit(cmd)
}

func furnish(tmp string) error {
	if err := os.MkdirAll(tmp, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	readOnly := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, readOnly); err != nil {
		return fmt.Errorf("make mounts read-only: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount proc: %w", err)
	}
	for _, dir := range []string{tmp, "/dev/shm"} {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=1777"); err != nil {
			return fmt.Errorf("mount over %s: %w", dir, err)
		}
	}
	limit := &unix.Rlimit{Cur: memory, Max: memory}
	return unix.Setrlimit(unix.RLIMIT_AS, limit)
}
