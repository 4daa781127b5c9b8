// Command fairlead-store is an etcd for nodes that share pools of addresses where there is none yet. It is a program and a
// module of its own, so that a restart of fairlead-agent stops no etcd, and the agent does not have the size of one.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"go.etcd.io/etcd/server/v3/embed"
)

// configFile is what `fairlead cluster init` writes.
const configFile = "/etc/fairlead/store/config.json"

// version is stamped by the Makefile.
var version string

const usage = `Run a member of the etcd in which the nodes of a fleet share pools of addresses.

"fairlead cluster init" without --etcd writes the configuration, which has the keys of etcd's --config-file, and starts
this program where systemd runs.

  fairlead-store --config-file /etc/fairlead/store/config.json

Flags:
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	err := run(ctx, os.Args[1:])
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return
	}
	fmt.Fprintln(os.Stderr, "fairlead-store:", err)
	os.Exit(1)
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("fairlead-store", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // a wrong flag is one line
	file := flags.String("config-file", configFile, "`FILE` with the settings, as etcd's own program reads them")
	alone := flags.Bool("force-new-cluster", false, "drop all other members, which are gone for good; the data stay")
	says := flags.Bool("version", false, "print the version, and end")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		flags.SetOutput(os.Stdout)
		fmt.Print(usage)
		flags.PrintDefaults()
		return err
	case err != nil:
		return fmt.Errorf("%w; fairlead-store -h lists the flags", err)
	case flags.NArg() > 0:
		return fmt.Errorf("%q: takes no arguments; fairlead-store -h lists the flags", flags.Args())
	case *says:
		fmt.Println(cmp.Or(version, "devel"))
		return nil
	}

	config, err := embed.ConfigFromFile(*file)
	if err != nil {
		return fmt.Errorf("--config-file: %w: `fairlead cluster init` without --etcd writes it", err)
	}
	config.EnableGRPCGateway = false // no certificate of a client would reach the server through it
	config.ForceNewCluster = *alone
	if config.WarningUnaryRequestDuration == 0 { // which etcd's own program has as the default of a flag
		config.WarningUnaryRequestDuration = embed.DefaultWarningUnaryRequestDuration
	}
	return serve(ctx, config)
}

// serve runs the member until ctx ends, or the member can do nothing more.
func serve(ctx context.Context, config *embed.Config) error {
	member, err := embed.StartEtcd(config)
	if err != nil {
		return err
	}
	defer member.Close()
	select {
	case <-ctx.Done():
		return nil
	case err := <-member.Err():
		return err
	case <-member.Server.StopNotify():
		return fmt.Errorf("the member %s has ended: it was removed, or its log says why", config.Name)
	}
}
