// Package run is fairlead run, which runs a command in a network namespace of its own, and fairlead host, which runs
// one in a throw-away host. It has the records, guards, processes and signals of both.
package run

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/advice"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/resolv"
	"github.com/fairlead-cni/fairlead/internal/command/cli/target"
	"github.com/fairlead-cni/fairlead/internal/command/cli/term"
	"github.com/fairlead-cni/fairlead/internal/dnslabel"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// runFlags holds the flags of `fairlead run`.
type runFlags struct {
	nets                 []wantedNet
	publish, dns, search []string
	aliases              []string
	name                 string
}

// wantedNet is a network of the command line.
type wantedNet struct {
	arg  string
	find func(*app.App, string) (*netconf.Network, error)
}

// Command is `fairlead run`.
func Command(a *app.App) *cobra.Command {
	var f runFlags
	c := &cobra.Command{
		Use:     "run [flags] -- COMMAND [ARGUMENT...]",
		Short:   "Run a command in a network namespace of its own, attached to networks",
		GroupID: "run",
		Long: `Run COMMAND in a network namespace of its own, attached to the networks that --net and --conf name: eth0 to the
first, eth1 to the second and so on. "ip netns" lists the namespace by the ID. Without --net and --conf, COMMAND is on the
default network: a bridge (` + netconf.DefaultBridge + `, ` + netconf.DefaultSubnet4 + ` and ` + netconf.DefaultSubnet6 + `) that masquerades
connections to the outside.

When COMMAND ends, or fairlead is killed, the attachments are removed, and processes that COMMAND left are ended. Signals
sent to fairlead are forwarded. COMMAND stays in the terminal's foreground, with its standard input, output and error.

Exit status: that of COMMAND, or 128 plus the number of the signal that killed it; 126 or 127 if COMMAND cannot be run.`,
		Example: `  fairlead run -p 8080:80 -- busybox httpd -f -h /srv
  fairlead run --net lan --dns 192.0.2.53 -- sh
  fairlead run --net apps --name web --alias www -- busybox httpd -f
  fairlead run --conf ./draft.conflist -- ip address`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return app.Misused(c, errors.New("COMMAND is missing"))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) (err error) {
			a.Status, err = run(c.Context(), a, f, args)
			return err
		},
	}
	flags := c.Flags()
	flags.SetInterspersed(false) // arguments after COMMAND belong to COMMAND
	for name, flag := range map[string]struct {
		usage string
		find  func(*app.App, string) (*netconf.Network, error)
	}{
		"net":  {"attach to the network `NET`, instead of the default one (repeatable)", netconf.FindOrFile},
		"conf": {"attach to the network that `FILE` defines (repeatable)", netconf.FindFile},
	} {
		flags.Func(name, flag.usage, func(arg string) error {
			f.nets = append(f.nets, wantedNet{arg, flag.find})
			return nil
		})
	}
	flags.StringArrayVarP(&f.publish, "publish", "p", nil,
		"publish `PORTS`, one or a range: [HOSTIP:]HOSTPORT:PORT[/udp], 8000-8009:8000-8009 (repeatable)")
	flags.StringArrayVar(&f.aliases, "alias", nil,
		"`NAME` of COMMAND for the containers of its networks, in addition to the ID (repeatable)")
	flags.StringArrayVar(&f.dns, "dns", nil,
		"`ADDRESS` of a name server for COMMAND, instead of the networks' (repeatable)")
	flags.StringArrayVar(&f.search, "dns-search", nil,
		"`DOMAIN` to complete names with, instead of the networks' (repeatable)")
	flags.StringVar(&f.name, "name", "",
		"`ID` of the container and name of its network namespace (default: a random one)")
	c.RegisterFlagCompletionFunc("net", netconf.CompleteNetworks)
	return c
}

// wanted is an attachment that a run makes: the network, and its capability arguments.
type wanted struct {
	*netconf.Network
	runtime      *attach.Runtime
	ifName       string
	capabilities map[string]any
}

// give passes a capability argument to the network's plugins.
func (w *wanted) give(capability string, value any) {
	if w.capabilities == nil {
		w.capabilities = map[string]any{}
	}
	w.capabilities[capability] = value
}

// wants parses the flags. It finds every error in them before anything is made.
func wants(a *app.App, f runFlags) ([]wanted, error) {
	for _, s := range f.dns {
		if _, err := netip.ParseAddr(s); err != nil {
			return nil, app.Usage("--dns %s: want the address of a name server", s)
		}
	}
	for _, s := range f.aliases {
		if err := dnslabel.Valid(s); err != nil {
			return nil, app.Usage("--alias %q: %w", s, err)
		}
	}
	if f.name != "" {
		if err := spec.ValidContainerID(f.name); err != nil || len(f.name) > 64 {
			return nil, app.Usage("--name %s: want at most 64 letters, digits, dots, dashes and underscores", f.name)
		}
	}
	var ports []attached.PortMapping
	for _, s := range f.publish {
		p, err := attached.ParsePorts(s)
		if err != nil {
			return nil, err
		}
		ports = append(ports, p)
	}
	nets := f.nets
	if len(nets) == 0 {
		nets = []wantedNet{{netconf.DefaultNetwork, netconf.Find}}
	}
	var ws []wanted
	resolves := false
	for i, net := range nets {
		n, rt, err := target.FindRuntime(a, net.find, net.arg)
		if err != nil {
			return nil, err
		}
		w := wanted{Network: n, runtime: rt, ifName: "eth" + strconv.Itoa(i)}
		if len(ports) > 0 && n.Publishes() {
			w.give("portMappings", n.Understood(ports))
			ports = nil // by the first network that can
		}
		if len(f.aliases) > 0 && n.Capabilities()["aliases"] {
			w.give("aliases", f.aliases)
			resolves = true
		}
		ws = append(ws, w)
	}
	if len(ports) > 0 {
		return nil, app.Fail(app.ExitUsage, `Add {"type": "portmap", "capabilities": {"portMappings": true}} to its plugins.`,
			"-p %s: no plugin of %s publishes ports", ports[0], nets[0].arg)
	}
	if len(f.aliases) > 0 && !resolves {
		return nil, app.Fail(app.ExitUsage, `Add {"type": "alias", "capabilities": {"aliases": true}} to its plugins.`,
			"--alias %s: no plugin of %s serves names", f.aliases[0], nets[0].arg)
	}
	return ws, nil
}

// run runs argv and returns its exit status.
func run(ctx context.Context, a *app.App, f runFlags, argv []string) (int, error) {
	runtime.LockOSThread() // the process's first thread must not enter the command's namespaces
	ws, err := wants(a, f)
	if err != nil {
		return 0, err
	}
	if err := findCommand(argv[0]); err != nil {
		return 0, err
	}
	if err := privileged(); err != nil {
		return 0, err
	}
	sigs := signals()
	if err := heeding(ctx, sigs, func(ctx context.Context) error { takeDownDead(ctx, a); return nil }); err != nil {
		return 0, err
	}

	ns, err := attach.NewNetns()
	if err != nil {
		return 0, err
	}
	defer ns.Close()
	r, err := newRecord(f.name, ns, ws)
	if err != nil {
		return 0, err
	}
	r.run = netconf.Runner(a, term.NewScreen(a.Stderr))
	g, err := startGuard(r, ns, a.Stderr)
	if err != nil {
		return 0, errors.Join(err, os.Remove(r.path()))
	}
	defer g.dismiss() // last, after the record is removed
	p := &process{argv: argv, netns: r.Netns, stdio: [3]*os.File{a.Stdin, a.Stdout, a.Stderr}}
	if err := attach.BindNetns(ns, r.Netns); err != nil {
		return 0, errors.Join(inUse(r.ID, err), os.Remove(r.path()))
	}
	status, err := runOn(ctx, a, r, ws, f, p, sigs)
	if down := r.takeDown(context.WithoutCancel(ctx), a.Stderr); down != nil {
		advice.Report(a, app.Fail(app.ExitFailure, "The next `fairlead run` tries again.", "%w", down))
		status = max(status, app.ExitFailure)
	}
	return status, err
}

// runOn attaches the namespace and runs the command in it.
func runOn(
	ctx context.Context, a *app.App, r *record, ws []wanted, f runFlags, p *process, sigs <-chan os.Signal,
) (int, error) {
	var dns spec.DNS
	err := heeding(ctx, sigs, func(ctx context.Context) error { return r.attach(ctx, ws, &dns) })
	if err != nil {
		return 0, err
	}
	if len(f.dns) > 0 {
		dns.Nameservers = f.dns
	}
	if len(f.search) > 0 {
		dns.Search, dns.Domain = f.search, ""
	}
	content, note := resolv.ResolvConf(dns, resolv.EtcResolv, resolv.SystemdResolv)
	if note != "" {
		a.Note("%s", note)
	}
	if content != nil {
		p.resolv = filepath.Join(r.files(), "resolv.conf")
		// Every user that the command becomes must be able to read it, whatever the umask is.
		err := errors.Join(os.MkdirAll(r.files(), 0o755), os.WriteFile(p.resolv, content, 0o644),
			os.Chmod(p.resolv, 0o644))
		if err != nil {
			return 0, err
		}
	}
	return p.run(sigs)
}

// heeding runs what comes before the command, when signals cannot be forwarded yet. A signal that asks to end
// cancels ctx and becomes the error.
func heeding(ctx context.Context, sigs <-chan os.Signal, do func(context.Context) error) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	done, idle := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(idle)
		for {
			select {
			case s := <-sigs:
				if ends(s) {
					cancel(app.Interrupted{Signal: s.(syscall.Signal)})
				}
			case <-done:
				return
			}
		}
	}()
	defer func() {
		close(done)
		<-idle
		if cause := context.Cause(ctx); cause != nil {
			err = cause // the signal explains the error
		}
		cancel(nil)
	}()
	return do(ctx)
}

// attach attaches the namespace to every network, and merges their DNS results.
func (r *record) attach(ctx context.Context, ws []wanted, dns *spec.DNS) error {
	for i, w := range ws {
		at := r.attachment(i)
		at.Capabilities = w.capabilities
		res, err := w.Network.Add(ctx, w.runtime, at)
		if err != nil { // and rolled back
			return fmt.Errorf("attach %s to %s: %w", r.ID, w.Name, err)
		}
		r.made = i + 1
		resolv.MergeDNS(dns, res.DNS)
	}
	return nil
}

// newRecord records what will be made, under a name that no other run has.
func newRecord(name string, ns *os.File, ws []wanted) (*record, error) {
	opened, err := kernel.Open(fmt.Sprintf("/proc/self/fd/%d", ns.Fd()))
	if err != nil {
		return nil, err
	}
	defer opened.Close()
	r := &record{ID: name, dir: RunDir(), held: true}
	if r.Namespace, err = opened.Identity(); err != nil {
		return nil, err
	}
	for _, w := range ws {
		list, err := netconf.Document(w.List)
		if err != nil {
			return nil, err
		}
		r.Attachments = append(r.Attachments, recorded{list, w.runtime.PluginDirs, w.ifName})
	}
	for {
		if name == "" {
			var b [4]byte
			rand.Read(b[:])
			r.ID = "run-" + hex.EncodeToString(b[:])
		}
		r.Netns = filepath.Join(attached.NetnsDir, r.ID)
		if err := r.create(); err == nil || name != "" || !errors.Is(err, fs.ErrExist) {
			return r, inUse(r.ID, err)
		}
	}
}

func inUse(id string, err error) error {
	if errors.Is(err, fs.ErrExist) {
		return app.Fail(app.ExitFailure, "Choose another --name; `ip netns` and `fairlead ls` list the names in use.",
			"%s is in use: %w", id, err)
	}
	return err
}

// privileged returns an error if this process may not make links and namespaces.
func privileged() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	const need = 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_SYS_ADMIN
	if data[0].Effective&need == need {
		return nil
	}
	return app.Fail(app.ExitFailure, app.HintPrivilege,
		"an ordinary user may not make links and network namespaces on this host (CAP_NET_ADMIN and CAP_SYS_ADMIN "+
			"are missing)")
}
