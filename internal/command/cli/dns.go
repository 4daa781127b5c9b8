package cli

import (
	"errors"
	"io/fs"
	"log/slog"
	"os/signal"
	"syscall"

	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/resolv"
	"github.com/fairlead-cni/fairlead/internal/command/nameserver"
	"github.com/fairlead-cni/fairlead/internal/dhcp/daemon"
	"github.com/fairlead-cni/fairlead/kernel/record"
	"github.com/spf13/cobra"
)

func dnsCommand(a *app.App) *cobra.Command {
	return &cobra.Command{
		Use: "dns", GroupID: "look", Args: app.Operands(""),
		Short: "Serve the names of containers to the containers of their network",
		Long: `Answer the DNS questions of containers for each other's names, which the plugin alias records. Forward all other
questions to the name servers of the host (/etc/resolv.conf). The server runs in the foreground until SIGTERM or SIGINT.

It listens on port 53, UDP and TCP, of the gateway addresses of each network that has the plugin alias and at least one
container. One process serves the node. systemd starts it if fairlead-dns.socket is enabled. Names are kept in files,
so a restart loses none.`,
		Example: `  systemctl enable --now fairlead-dns.socket
  fairlead dns`,
		RunE: func(c *cobra.Command, args []string) error { return serveNames(a, c) },
	}
}

func serveNames(a *app.App, c *cobra.Command) error {
	ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	m := record.Store{Dir: record.Dir}
	l, err := daemon.Listener(nameserver.Socket(m), 0o660)
	if errors.Is(err, fs.ErrPermission) {
		return err
	} else if err != nil {
		return app.Fail(app.ExitFailure,
			"One name server serves all networks of a node; `systemctl status fairlead-dns` says whether it runs.",
			"%w", err)
	}
	log := slog.New(slog.NewTextHandler(a.Stderr, nil))
	return nameserver.Serve(ctx, nameserver.Settings{
		Memory: m, ResolvConf: resolv.EtcResolv, Log: log, Holder: attached.Holder,
	}, l, func() {
		log.Info("ready")
		daemon.Notify("READY=1")
	})
}
