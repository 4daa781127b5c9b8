package conformance

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/fairlead-cni/fairlead/internal/nstest"
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
	return nstest.AsInit(cmd)
}
