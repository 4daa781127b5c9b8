// Package dhcp is fairlead dhcp: the DHCP daemon, its leases and their adoption. The daemon itself is package
// dhcp/daemon.
package dhcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/term"
	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/internal/dhcp/daemon"
	"github.com/fairlead-cni/fairlead/internal/dhcp/rpc"
	"github.com/fairlead-cni/fairlead/internal/restore"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
)

// Command is `fairlead dhcp`.
func Command(a *app.App) *cobra.Command {
	c := &cobra.Command{
		Use: "dhcp", GroupID: "look",
		Short: "Inspect and manage the leases that the DHCP daemon keeps",
		Long: `Inspect the leases that the DHCP daemon keeps for networks whose IPAM plugin is dhcp, release one, or run the
daemon. systemd starts the daemon if cni-dhcp.socket is enabled.`,
	}
	c.AddCommand(dhcpLsCommand(a), dhcpReleaseCommand(a), dhcpAdoptCommand(a), dhcpDaemonCommand(a))
	return c
}

// How long the daemon may take: for an answer that it has at hand, and for one that a server has to give.
const (
	askLimit   = 10 * time.Second
	adoptLimit = time.Minute
)

// askDaemon asks the daemon that keeps leases.
func askDaemon(ctx context.Context, limit time.Duration, socket string, q rpc.Question) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var r rpc.Reply
	err := rpc.Call(ctx, socket, rpc.Ask, q, &r)
	var answered rpc.Error
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		return nil, app.Fail(app.ExitFailure,
			"Start it: systemctl enable --now cni-dhcp.socket, or fairlead dhcp daemon.",
			"no DHCP daemon listens: %w", err)
	case errors.As(err, &answered) && answered.Unknown():
		return nil, app.Fail(app.ExitFailure, "It gives leases to plugins, and does not list them.",
			"the DHCP daemon at %s is not fairlead's", socket)
	case err != nil:
		return nil, fmt.Errorf("ask the DHCP daemon: %w", err)
	case r.Code != 0:
		return nil, &spec.Error{Code: spec.Code(r.Code), Msg: r.Message}
	}
	return r.Document, nil
}

// socketFlag says where the daemon listens that keeps the leases of a network, or the one that serves whatever network.
func socketFlag(c *cobra.Command) func(network string) string {
	path := c.Flags().String("socket", "",
		"`PATH` where the daemon listens (default: ipam.daemonSocketPath of NET, else "+rpc.DefaultSocket+")")
	return func(network string) string { return cmp.Or(*path, ConfiguredSocket(network), rpc.DefaultSocket) }
}

// ConfiguredSocket is the socket that a network's configuration names; empty where it names none.
func ConfiguredSocket(network string) string {
	if spec.ValidName(network) != nil {
		return ""
	}
	l, err := spec.Load(netconf.ConfDir(), network)
	if err != nil {
		l = netconf.Orphaned(network)
	}
	if l == nil {
		return ""
	}
	for _, conf := range l.WrittenOut().Plugins {
		var c dhcp.Conf
		if raw, ok := conf.Object.Get("ipam"); ok && conf.IPAMType == "dhcp" && json.Unmarshal(raw, &c) == nil {
			return c.Socket("")
		}
	}
	return ""
}

// A Leased is a lease as ls and release print it.
type Leased struct {
	Network     string     `json:"network"`
	ContainerID string     `json:"containerID"`
	IfName      string     `json:"ifname"`
	Protocol    string     `json:"protocol"`
	State       string     `json:"state"`
	Reason      string     `json:"reason,omitempty"`
	Addresses   []string   `json:"addresses"`
	Delegated   []string   `json:"delegated,omitempty"`
	Gateway     string     `json:"gateway,omitempty"`
	Nameservers []string   `json:"nameservers,omitempty"`
	TimeServers []string   `json:"timeServers,omitempty"`
	MTU         int        `json:"mtu,omitempty"`
	Server      string     `json:"server,omitempty"`
	MAC         string     `json:"mac"`
	Netns       string     `json:"netns"`
	Since       time.Time  `json:"since"`
	Renew       *time.Time `json:"renew,omitempty"`
	Ends        *time.Time `json:"ends,omitempty"`
	File        string     `json:"file"`
}

// Owner returns the attachment that has the lease.
func (l Leased) Owner() spec.Owner {
	return spec.Owner{Network: l.Network, ContainerID: l.ContainerID, IfName: l.IfName}
}

func leasedOf(e daemon.Entry) Leased {
	l := Leased{Network: e.Owner.Network, ContainerID: e.Owner.ContainerID, IfName: e.Owner.IfName,
		Protocol: e.Protocol, State: e.State, Reason: e.Reason,
		Addresses: []string{}, Nameservers: e.Lease.DNS.Nameservers, MTU: e.Lease.MTU,
		MAC: e.Lease.MAC, Netns: e.Netns, Since: e.Lease.Asked, File: e.File}
	for _, p := range e.Lease.Prefixes() {
		l.Addresses = append(l.Addresses, p.String())
	}
	for _, p := range e.Lease.Delegated {
		l.Delegated = append(l.Delegated, p.Prefix.String())
	}
	for _, a := range e.Lease.NTP {
		l.TimeServers = append(l.TimeServers, a.String())
	}
	if a := e.Lease.Gateway; a.IsValid() {
		l.Gateway = a.String()
	}
	if a := e.Lease.Server.Addr; a.IsValid() {
		l.Server = a.String()
	}
	if !e.Renew.IsZero() {
		l.Renew = &e.Renew
	}
	if !e.Over.IsZero() {
		l.Ends = &e.Over
	}
	return l
}

// What is what a lease gives, delegated prefixes marked as such.
func (l Leased) What() string {
	texts := slices.Clone(l.Addresses)
	for _, p := range l.Delegated {
		texts = append(texts, "delegated "+p)
	}
	return strings.Join(texts, ", ")
}

// Leases are all that the daemon keeps.
func Leases(ctx context.Context, socket string, want func(Leased) bool) ([]Leased, error) {
	b, err := askDaemon(ctx, askLimit, socket, rpc.Question{Verb: "LS"})
	if err != nil {
		return nil, err
	}
	var all []daemon.Entry
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, err
	}
	list := []Leased{}
	for _, e := range all {
		if l := leasedOf(e); want(l) {
			list = append(list, l)
		}
	}
	return list, nil
}

func dhcpLsCommand(a *app.App) *cobra.Command {
	c := &cobra.Command{
		Use: "ls [NET]", Args: app.Operands("[NET]"),
		Short: "List the leases that the daemon keeps",
		Long: `List the leases of all networks, or of NET, as the daemon has them. A lease has one of these states:

  bound      valid; the server need not be asked yet
  renewing   the server is asked for more time
  rebinding  that server does not answer, and any server is asked
  lost       expired: its addresses are off the link, and the daemon goes on asking for another

A network with an ipam.daemonSocketPath has another daemon; name that network to ask its daemon.`,
		ValidArgsFunction: netconf.CompleteNetworks,
	}
	socket := socketFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		network := strings.Join(args, "")
		of := func(l Leased) bool { return network == "" || l.Network == network }
		list, err := Leases(c.Context(), socket(network), of)
		if err == nil && len(list) == 0 {
			err = netconf.Known(network)
		}
		if err != nil {
			return err
		}
		if a.JSON() {
			return a.PrintJSON(struct {
				Leases []Leased `json:"leases"`
			}{list})
		}
		if len(list) == 0 {
			a.Print("no lease is kept\n")
			return nil
		}
		s := a.Style(a.Stdout)
		t := term.Table{{"NETWORK", "CONTAINER", "INTERFACE", "PROTOCOL", "ADDRESS", "SERVER", "STATE", "ENDS", "NOTE"}}
		for _, l := range list {
			state := s.Doubt(l.State)
			switch l.State {
			case "bound":
				state = s.Good(l.State)
			case "lost":
				state = s.Bad(l.State)
			}
			ends := "never"
			if l.Ends != nil {
				ends = "in " + max(time.Until(*l.Ends), 0).Round(time.Second).String()
			}
			t = append(t, []any{l.Network, l.ContainerID, l.IfName, l.Protocol, l.What(), l.Server, state, ends,
				l.Reason})
		}
		a.Draw(t)
		return nil
	}
	return c
}

func dhcpReleaseCommand(a *app.App) *cobra.Command {
	c := &cobra.Command{
		Use: "release NET CONTAINERID [IFNAME]", Args: app.Operands("NET CONTAINERID [IFNAME]"),
		Short: "Release a lease that no DEL will release",
		Long: `Release the lease of an interface (IFNAME, default eth0) of a container, as its DEL would. Use this where the
DEL never comes. The lease of a container that may be alive is released only with --force: its address stays on the
link, and the server may give it to another machine.`,
	}
	socket := socketFlag(c)
	force := c.Flags().Bool("force", false, "give back the lease of a container that may be alive")
	c.RunE = func(c *cobra.Command, args []string) error {
		o := spec.Owner{Network: args[0], ContainerID: args[1], IfName: "eth0"}
		if len(args) > 2 {
			o.IfName = args[2]
		}
		socket := socket(o.Network)
		released, err := Leases(c.Context(), socket, func(l Leased) bool { return l.Owner() == o })
		if err != nil {
			return err
		}
		if len(released) == 0 {
			return app.Fail(app.ExitNotFound, "`fairlead dhcp ls` lists those that are kept.",
				"no lease of %s is kept", o)
		}
		for _, l := range released {
			if !*force && restore.Vanished(nil)(o, l.Netns) == nil {
				return app.Fail(app.ExitUsage,
					"Detach the container (`fairlead del`), or give its lease back with --force if you know that it "+
						"is gone.",
					"%s is in use by %s, which is not proven gone (its namespace is %s)",
					l.What(), o, cmp.Or(l.Netns, "not known"))
			}
		}
		conf, err := json.Marshal(map[string]any{"cniVersion": spec.Newest, "name": o.Network, "type": "dhcp",
			"ipam": map[string]any{"type": "dhcp"}})
		if err != nil {
			return err
		}
		if _, err := askDaemon(c.Context(), askLimit, socket, rpc.Question{Verb: "DEL",
			Args: rpc.Args{ContainerID: o.ContainerID, IfName: o.IfName, StdinData: conf}}); err != nil {
			return err
		}
		if a.JSON() {
			return a.PrintJSON(struct {
				Released []Leased `json:"released"`
			}{released})
		}
		for _, l := range released {
			a.Print("%s: %s is given back\n", o, l.What())
		}
		return nil
	}
	return c
}

func dhcpDaemonCommand(a *app.App) *cobra.Command {
	return &cobra.Command{
		Use:   "daemon [FLAG...]",
		Short: "Run the DHCP daemon (-help lists the flags)",
		Long: `Keep the leases that the IPAM plugin dhcp asks for, and give them back with the containers' DEL, until it is
ended. The leases are on the disk, and the next daemon goes on with them. Its flags have one dash:

` + daemon.Flags(),
		DisableFlagParsing: true, // they are the reference's, with one dash
		RunE: func(c *cobra.Command, args []string) error {
			a.Status = daemon.Main(args, a.Stderr)
			return nil
		},
	}
}
