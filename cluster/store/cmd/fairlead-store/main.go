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
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
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
	alone := flags.Bool("force-new-cluster", false, "drop all other members, which are gone for good, keep the data, and end; "+
		"no node claims addresses then until fairlead cluster readopt --done")
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
	if config.Dir == "" {
		return fmt.Errorf("--config-file: %s has no data-dir: `fairlead cluster init` without --etcd writes one", *file)
	}
	config.EnableGRPCGateway = false             // no certificate of a client would reach the server through it
	if config.WarningUnaryRequestDuration == 0 { // which etcd's own program has as the default of a flag
		config.WarningUnaryRequestDuration = embed.DefaultWarningUnaryRequestDuration
	}
	if *alone {
		return forceNewCluster(ctx, config)
	}
	return serve(ctx, config)
}

// forceNewCluster drops all other members. They may have had claims that this one has not. So no node is to ask before the data say,
// for each cluster, that the nodes have to tell what they have.
func forceNewCluster(ctx context.Context, config *embed.Config) error {
	here := url.URL{Scheme: "unix", Host: "fairlead-store-" + strconv.Itoa(os.Getpid())}
	config.ForceNewCluster, config.ListenClientUrls = true, []url.URL{here}
	member, err := embed.StartEtcd(config)
	if err != nil {
		return err
	}
	defer member.Close()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-member.Err():
		return err
	case <-member.Server.ReadyNotify():
	}
	ctx = member.Server.AuthStore().WithRoot(ctx)
	const all = "/fairlead/"
	keys, err := member.Server.Range(ctx, &etcdserverpb.RangeRequest{Key: []byte(all), RangeEnd: []byte("/fairlead0"), KeysOnly: true})
	if err != nil {
		return err
	}
	for _, kv := range keys.Kvs {
		cluster, isConfig := strings.CutSuffix(string(kv.Key), "/v1/config")
		if !isConfig {
			continue
		}
		readopt := &etcdserverpb.PutRequest{Key: []byte(cluster + "/v1/readopt"), Value: []byte("{}")}
		if _, err := member.Server.Put(ctx, readopt); err != nil {
			return err
		}
		fmt.Printf("%s: no node claims addresses until fairlead cluster readopt --done\n", strings.TrimPrefix(cluster, all))
	}
	return nil
}

// serve runs the member until ctx ends, or the member can do nothing more.
func serve(ctx context.Context, config *embed.Config) error {
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(config.GetLogger().WithOptions(zap.WrapCore(func(core zapcore.Core) zapcore.Core {
		return untilEnd{core, ctx}
	})))
	member, err := embed.StartEtcd(config)
	if err != nil {
		return err
	}
	defer member.Close()
	select {
	case <-ctx.Done():
		return nil
	case err := <-member.Err():
		return reason(config.Name, member.Server.StoppingNotify(), err)
	case <-member.Server.StopNotify():
		return reason(config.Name, member.Server.StoppingNotify(), nil)
	}
}

// reason says why a member has ended. If it stops by itself, its listeners may say only that first.
func reason(name string, stopping <-chan struct{}, err error) error {
	select {
	case <-stopping:
		return fmt.Errorf("the member %s has ended: it was removed (fairlead cluster members), or its log says why", name)
	default:
		return err
	}
}

// An untilEnd is a log of what happens before ctx ends. As it ends, etcd calls each listener that it closes an error.
type untilEnd struct {
	zapcore.Core
	ctx context.Context
}

func (u untilEnd) With(fields []zapcore.Field) zapcore.Core {
	return untilEnd{u.Core.With(fields), u.ctx}
}

func (u untilEnd) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if u.ctx.Err() != nil {
		return to
	}
	return u.Core.Check(e, to)
}
