package conformance

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// noProc is the exit status of a throw-away host that may have no /proc of its own.
const noProc = 78

// hostInit is process 1 of a throw-away host. It runs the worker and waits for orphans, as an init does. When it
// ends, or is killed, the kernel kills whatever plugins left running.
func hostInit() (status int, err error) {
	err = syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, "")
	if err == nil {
		err = syscall.Mount("proc", "/proc", "proc", 0, "")
	}
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
		var end syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &end, 0, nil)
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
