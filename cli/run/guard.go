package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/fairlead-cni/fairlead/cli/app"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// A guard is a process that takes a run down when the run is killed. It holds the reading end of a pipe
// whose other end dies with the run.
type guard struct {
	cmd  *exec.Cmd
	pipe *os.File
}

const guardName = "guard-a-run" // a command of ours that `fairlead help` does not list

func startGuard(r *record, ns, stderr *os.File) (*guard, error) {
	its, mine, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer its.Close()
	cmd := exec.Command("/proc/self/exe", guardName, r.path())
	cmd.Args[0] = "fairlead"
	cmd.Stdin, cmd.Stderr = its, stderr
	cmd.ExtraFiles = []*os.File{r.lock, ns}              // both are held until it ends too
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // what is sent to the terminal's processes is not for it
	if err := cmd.Start(); err != nil {
		mine.Close()
		return nil, fmt.Errorf("start guard: %w", err)
	}
	return &guard{cmd, mine}, nil
}

// dismiss ends the guard, for there is nothing left to do.
func (g *guard) dismiss() {
	g.pipe.Write([]byte{0})
	g.pipe.Close()
	g.cmd.Wait()
}

// GuardCommand is the process that takes a run down when the command is killed.
func GuardCommand(a *app.App) *cobra.Command {
	return &cobra.Command{
		Use: guardName, Hidden: true, Args: app.Operands("RECORD"),
		RunE: func(c *cobra.Command, args []string) error {
			// Nobody but the run tells it to stop.
			signal.Notify(make(chan os.Signal, 1), unix.SIGTERM, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT)
			n, err := a.Stdin.Read(make([]byte, 1))
			if n == 1 {
				return nil
			}
			if !errors.Is(err, io.EOF) {
				return err
			}
			r, err := read(args[0], os.NewFile(3, "lock"))
			if r == nil {
				return err // the run was killed after it had taken itself down
			}
			r.held = true
			return r.takeDown(context.Background(), a.Stderr)
		},
	}
}
