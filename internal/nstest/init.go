package nstest

import (
	"errors"
	"fmt"
	"os/exec"

	"golang.org/x/sys/unix"
)

// AsInit runs a command in process 1 of a PID namespace, and returns its exit status. Process 1 is the parent of all
// orphans, and waits for them, too.
func AsInit(cmd *exec.Cmd) (status int, err error) {
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	for {
		var ended unix.WaitStatus
		pid, err := unix.Wait4(-1, &ended, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 1, err
		case pid == cmd.Process.Pid && ended.Signaled():
			return 1, fmt.Errorf("%s ended by the signal %v", cmd.Path, ended.Signal())
		case pid == cmd.Process.Pid:
			return ended.ExitStatus(), nil
		}
	}
}
