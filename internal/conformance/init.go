package conformance

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// noProc is the exit status of a throw-away host that may have no /proc of its own.
const noProc = 78

// reign is process 1 of a throw-away host. It runs the worker and waits for orphans, as an init does. When it ends, or
// is killed, the kernel kills whatever plugins left running.
func reign() (status int, err error) {
	err = errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("proc", "/proc", "proc", 0, ""))
	if err != nil {
		return noProc, fmt.Errorf("mount /proc: %w", err)
	}

	cmd := exec.Command("/proc/self/exe", workerArg)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return 1, err
	}

	for {
		var end unix.WaitStatus
		pid, err := unix.Wait4(-1, &end, 0, nil)
		switch {
		case err != nil && err != syscall.EINTR:
			return 1, err
		case pid == cmd.Process.Pid && end.Signaled():
			return 1, fmt.Errorf("the suite's process was killed: %v", end.Signal())
		case pid == cmd.Process.Pid:
			return end.ExitStatus(), nil
		}
	}
}
