package run

import (
	"errors"
	"os"
	"runtime"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/resolv"
	"github.com/fairlead-cni/fairlead/internal/command/cli/snapshot"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
)

// ExecCommand is `fairlead exec`.
func ExecCommand(a *app.App) *cobra.Command {
	c := &cobra.Command{
		Use:     "exec CONTAINER -- COMMAND [ARGUMENT...]",
		Short:   "Run a command in the network namespace of a container",
		GroupID: "run",
		Long: `Run COMMAND of this host in the network namespace of a container, with the container's interfaces, routes and name
servers. The container needs no tools of its own. Files, users and processes are those of the host.

CONTAINER is the name or ID that "fairlead ls" prints, the beginning of an ID, a pod as NAMESPACE/NAME, or the name or path
of a network namespace.

Exit status: that of COMMAND, or 128 plus the number of the signal that killed it; 4 no such container; 126 or 127 if
COMMAND cannot be run.`,
		Example: `  fairlead exec web-0 -- ip address
  fairlead exec default/web-0 -- ss -lnt`,
		Args: func(c *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return app.Misused(c, errors.New("CONTAINER is missing"))
			case len(commandOf(args)) == 0:
				return app.Misused(c, errors.New("COMMAND is missing"))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) (err error) {
			a.Status, err = execIn(args[0], commandOf(args), [3]*os.File{a.Stdin, a.Stdout, a.Stderr})
			return err
		},
		ValidArgsFunction: attached.CompleteContainers,
	}
	c.Flags().SetInterspersed(false) // arguments after COMMAND belong to COMMAND
	return c
}

// commandOf returns what follows the container. Without interspersed flags, a -- there is an argument.
func commandOf(args []string) []string {
	if len(args) > 1 && args[1] == "--" {
		return args[2:]
	}
	return args[1:]
}

// execIn runs argv in the network namespace of a container, and returns its exit status.
func execIn(container string, argv []string, stdio [3]*os.File) (status int, err error) {
	runtime.LockOSThread() // the process's first thread must not enter the container's namespace
	s, err := snapshot.Open("")
	if err != nil {
		return 0, err
	}
	defer s.Close()
	mine, err := attached.One(container, s.All)
	if err != nil {
		return 0, err
	}
	netns := mine[0].Netns
	switch {
	case netns == "":
		return 0, app.Fail(app.ExitFailure, "Use `nsenter --net --target PID` with the PID of a process in it.",
			"container %q: the program that attached it has not recorded its network namespace", container)
	case s.Gone(mine[0]):
		return 0, app.Fail(app.ExitNotFound, "`fairlead gc --gone` removes what the dead container left.",
			"container %q: its network namespace %s no longer exists", container, netns)
	}
	if err := findCommand(argv[0]); err != nil {
		return 0, err
	}
	if err := privileged(); err != nil {
		return 0, err
	}

	sigs := signals()
	p := &process{argv: argv, netns: netns, stdio: stdio}
	file, err := resolvConf(mine)
	if err != nil {
		return 0, err
	}
	if file != "" {
		defer os.Remove(file)
		p.resolv = file
	}
	return p.run(sigs)
}

// resolvConf writes a resolv.conf with the name servers of a container's networks, and returns its path. It returns ""
// if the host's file serves.
func resolvConf(mine []attach.Cached) (path string, err error) {
	var dns spec.DNS
	for _, c := range mine {
		if c.Result != nil {
			resolv.MergeDNS(&dns, c.Result.DNS)
		}
	}
	content, _ := resolv.ResolvConf(dns, resolv.EtcResolv, resolv.SystemdResolv)
	if content == nil {
		return "", nil
	}
	f, err := os.CreateTemp("", "fairlead-resolv-*")
	if err != nil {
		return "", err
	}
	_, err = f.Write(content)
	// every user that the command becomes must be able to read it
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), nil
}
