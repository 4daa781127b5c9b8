package cli

import (
	"errors"
	"io/fs"
	"log/slog"
	"os/signal"
	"syscall"

	"github.com/fairlead-cni/fairlead/dhcp/daemon"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/nameserver"
	"github.com/spf13/cobra"
)

func (a *app) dnsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "dns", GroupID: "look", Args: operands(""),
		Short: "Serve the names of containers to the containers of their network",
		Long: `Answer the DNS questions of containers for each other's names, which the plugin alias records. Forward all other
questions to the name servers of the host (/etc/resolv.conf). The server runs in the foreground until SIGTERM or SIGINT.

It listens on port 53, UDP and TCP, of the gateway addresses of each network that has the plugin alias and at least one
container. One process serves the node. systemd starts it if fairlead-dns.socket is enabled. Names are kept in files,
so a restart loses none.`,
		Example: `  systemctl enable --now fairlead-dns.socket
  fairlead dns`,
		RunE: func(c *cobra.Command, args []string) error { return a.serveNames(c) },
	}
}

func (a *app) serveNames(c *cobra.Command) error {
	ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	m := kernel.Store{Dir: kernel.StoreDir}
	l, err := daemon.Listener(nameserver.Socket(m), 0o660)
	if errors.Is(err, fs.ErrPermission) {
		return err
	} else if err != nil {
		return fail(exitFailure,
			"One name server serves all networks of a node; `systemctl status fairlead-dns` says whether it runs.", "%w", err)
	}
	log := slog.New(slog.NewTextHandler(a.stderr, nil))
	return nameserver.Serve(ctx, nameserver.Settings{
		Memory: m, ResolvConf: etcResolv, Log: log, Holder: holder,
	}, l, func() {
		log.Info("ready")
		daemon.Notify("READY=1")
	})
}
