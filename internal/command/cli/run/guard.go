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

	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// guard is a process that removes the attachments of a run that was killed. It notices the kill because it reads
// from a pipe that closes with the run.
type guard struct {
	cmd  *exec.Cmd
	pipe *os.File
}

const guardName = "guard-a-run" // hidden from `fairlead help`

func startGuard(r *record, ns, stderr *os.File) (*guard, error) {
	its, mine, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer its.Close()
	cmd := exec.Command("/proc/self/exe", guardName, r.path())
	cmd.Args[0] = "fairlead"
	cmd.Stdin, cmd.Stderr = its, stderr
	cmd.ExtraFiles = []*os.File{r.lock, ns} // the guard holds both, too
	// a new session, so that the terminal's signals do not reach it
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		mine.Close()
		return nil, fmt.Errorf("start guard: %w", err)
	}
	return &guard{cmd, mine}, nil
}

// dismiss ends the guard when nothing is left to remove.
func (g *guard) dismiss() {
	g.pipe.Write([]byte{0})
	g.pipe.Close()
	g.cmd.Wait()
}

// GuardCommand returns the hidden command that is the guard.
func GuardCommand(a *app.App) *cobra.Command {
	return &cobra.Command{
		Use: guardName, Hidden: true, Args: app.Operands("RECORD"),
		RunE: func(c *cobra.Command, args []string) error {
			// Only the run may end the guard.
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
				return err // the run was killed after it had removed everything
			}
			r.held = true
			return r.takeDown(context.Background(), a.Stderr)
		},
	}
}
