// Package trace is fairlead trace: it parses which packet to follow, and prints its path. The top-level package
// trace follows the packet.
package trace

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/doctor"
	"github.com/fairlead-cni/fairlead/internal/command/cli/term"
	"github.com/fairlead-cni/fairlead/internal/command/trace"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// tracing is one run of trace.
type tracing struct {
	*app.App
	from string // the client's address
	in   string // the host's link by which the packet comes in
	live bool
}

// Command is `fairlead trace`.
func Command(a *app.App) *cobra.Command {
	t := tracing{App: a}
	c := &cobra.Command{
		Use: "trace [CONTAINER] to [ADDRESS][:PORT][/PROTOCOL]", GroupID: "look",
		Short: "Follow a packet hop by hop: where it ends, and why",
		Long: `Follow one packet from a container, or from outside to an address of the host, without sending it: routes,
links and bridges, neighbours, all rules of the packet filter, translation, and the process that listens at the end. The
last lines say whether the packet arrives, and if not, what stops it and the command that corrects it. Nothing is
changed.

CONTAINER is named as for inspect. Without a CONTAINER, the packet comes from outside through the link of the default
route, or through --in LINK; with --in lo the host sends it itself. PROTOCOL is tcp, udp, sctp or icmp; default: tcp with
a port, icmp without. Without a CONTAINER, ADDRESS may be omitted (:8080): it is then the address of that link. With a
CONTAINER, ADDRESS may be the name of another container (db:80): it is then its address on a network of both. The word
"to" may be an arrow in quotes: fairlead trace 'web -> 192.0.2.1:443'.

With --live, the container sends the packet, or without a CONTAINER the host, and the trace of nf_tables follows it. The
answer shows the observation beside the prediction, and marks differences. For some seconds, tables named fairlead_trace
exist; the kernel removes them when the command ends, even if it is killed.

A packet to a container of another node of a cluster is followed there by that node's agent, if the agents have a key.
Its steps come below those of this node, and before them what the two nodes know differently. With --live, only this node
observes the packet.

The command does not see filters of the network outside, BPF programs and, with --live, legacy iptables.

Exit status: 0 the packet arrives, or leaves the host for where nothing more is known, 1 unknown (as of UDP without an
answer), 3 it does not arrive, or --live observed no answer or a difference from the prediction, 4 no such container.`,
		Example: `  fairlead trace web to 192.0.2.1:443
  fairlead trace default/web-0 to 10.88.0.7:53/udp --live
  fairlead trace to :8080 --from 198.51.100.7     a client outside, and a published port`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return t.run(args) },

		ValidArgsFunction: func(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			switch {
			case len(args) == 0:
				ids, directive := attached.CompleteContainers(c, args, word)
				return append(ids, "to"), directive
			case len(args) == 1 && args[0] != "to":
				return []string{"to"}, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
	}
	c.Flags().StringVar(&t.from, "from", "",
		"`ADDRESS` of the client outside; default: one that no rule is likely to name")
	c.Flags().StringVar(&t.in, "in", "", "`LINK` of the host through which the packet comes in; lo: the host sends it")
	c.Flags().BoolVar(&t.live, "live", false, "send the packet, and show the observation beside the prediction")
	return c
}

// Arrows replaces arrows in the arguments of trace by "to". An argument that begins with - would be a flag.
func Arrows(args []string) []string {
	at := slices.Index(args, "trace")
	if end := slices.Index(args, "--"); at < 0 || end >= 0 && end < at {
		return args
	}
	var plain []string
	for i, arg := range args {
		left, right, arrow := strings.Cut(arg, "->")
		if i <= at || !arrow {
			plain = append(plain, arg)
			continue
		}
		for _, word := range []string{left, "to", right} {
			if word = strings.TrimSpace(word); word != "" {
				plain = append(plain, word)
			}
		}
	}
	return plain
}

func (t *tracing) run(args []string) (err error) {
	d, err := doctor.Open(t.App)
	if err != nil {
		return err
	}
	defer d.Close()
	q, err := t.question(d, args)
	if err != nil {
		return err
	}
	tracer := d.Tracer()
	var answer *trace.Answer
	if t.live {
		answer, err = tracer.Live(d.Ctx, q)
	} else {
		answer, err = tracer.Trace(q)
	}
	if err != nil {
		return err
	}
	d.Advise(q, answer)
	if err := follow(d, answer); err != nil {
		return err
	}
	switch {
	case answer.Verdict == trace.Stops || answer.Differs:
		t.Status = app.ExitFault
	case answer.Verdict == trace.Unknown:
		t.Status = app.ExitFailure
	}
	if t.JSON() {
		return t.PrintJSON(answer)
	}
	t.print(answer)
	return d.Ctx.Err()
}

// question parses the arguments.
func (t *tracing) question(d *doctor.Doctor, args []string) (q trace.Question, err error) {
	at := slices.Index(args[min(1, len(args)):], "to") + 1 // a container may be called to
	if at == 0 && args[0] != "to" {
		return q, app.Fail(app.ExitUsage, "The shell interprets >. Write \"to\", or the arrow in quotes.",
			"want [CONTAINER] to ADDRESS[:PORT][/PROTOCOL]")
	}
	if at > 1 || len(args) != at+2 {
		return q, app.Usage("want at most one CONTAINER, and one ADDRESS[:PORT][/PROTOCOL] after \"to\"")
	}
	var sender attach.Cached
	if at > 0 {
		found, err := d.Seek(args[0])
		if err != nil {
			return q, err
		}
		sender = found[0]
	}
	find := func(text string) (netip.AddrPort, error) { return d.Target(text, sender) }
	if err := target(&q, args[at+1], find); err != nil {
		return q, err
	}
	if at == 0 {
		return q, t.outside(d, &q)
	}
	if t.from != "" || t.in != "" {
		return q, app.Usage("--from and --in are for packets from outside, without a CONTAINER")
	}
	if d.Gone(sender) || sender.Netns == "" {
		return q, app.Fail(app.ExitNotFound, "", "the network namespace of container %s is gone",
			attached.ShortOwner(sender))
	}
	if !q.Dst.IsValid() {
		return q, app.Usage("%q: want an address before the port, for a packet from a container", args[at+1])
	}
	from := doctor.Traced(sender)
	q.From = &from
	return q, nil
}

// outside completes the question about a packet from outside: the link by which it comes in, and its destination.
func (t *tracing) outside(d *doctor.Doctor, q *trace.Question) (err error) {
	if t.from != "" {
		if q.Src, err = netip.ParseAddr(t.from); err != nil {
			return app.Usage("--from %s: want an address", t.from)
		}
		if q.Dst.IsValid() && q.Src.Is4() != q.Dst.Is4() {
			return app.Usage("--from %s: %v is of the other address family", t.from, q.Dst)
		}
	}
	q.In = t.in
	if t.live { // --live sends from this host
		if q.In = ""; t.in != "" && t.in != "lo" || t.from != "" {
			return app.Usage("--live sends from a CONTAINER or from the host itself: leave out --in and --from")
		}
	}
	l := &rtnl.Link{}
	switch {
	case t.in != "":
		l, err = rtnl.LinkByName(d.Host, t.in)
	case q.Src.IsValid():
		var r rtnl.Route
		if r, err = rtnl.RouteTo(d.Host, q.Src); err == nil {
			l, err = rtnl.LinkByIndex(d.Host, r.Link)
		} else if errors.Is(err, unix.ENETUNREACH) {
			return app.Fail(app.ExitUsage, "Give the host a default route, with `ip route add default via ROUTER`, or "+
				"name the link by which the packet comes in: --in LINK.", "the host has no route back to %v", q.Src)
		}
	default:
		if l, err = rtnl.Egress(d.Host); errors.Is(err, rtnl.ErrNoLink) {
			return app.Fail(app.ExitUsage, "Name the link of the host by which it comes in: --in LINK.",
				"the host has no default route")
		}
	}
	if err != nil {
		return err
	}
	if q.In == "" && !t.live {
		q.In = l.Name
	}
	if !q.Dst.IsValid() {
		if q.Dst = d.AddrOf(l, q.Src.Is6()); !q.Dst.IsValid() {
			q.Dst = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
	}
	if q.In == "lo" {
		q.In = ""
	}
	return nil
}

// target parses the destination of a packet, ADDRESS[:PORT][/PROTOCOL] or :PORT[/PROTOCOL]. The name of a container may
// contain slashes.
func target(q *trace.Question, text string, find func(string) (netip.AddrPort, error)) error {
	where, proto := text, ""
	if i := strings.LastIndex(text, "/"); i >= 0 {
		if _, err := find(text); err != nil {
			where, proto = text[:i], text[i+1:]
		}
	}
	if number, port := strings.CutPrefix(where, ":"); port && !strings.Contains(number, ":") {
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil || n == 0 {
			return app.Usage("%q: %s is not a port", text, number)
		}
		q.DstPort = uint16(n)
	} else {
		to, err := find(where)
		if err != nil {
			return err
		}
		q.Dst, q.DstPort = to.Addr(), to.Port()
	}
	icmp := trace.ICMP(q.Dst)
	switch number, known := kernel.ParseProto(proto); {
	case proto == "" && q.DstPort != 0:
		q.Proto = kernel.TCP
	case proto == "" || strings.EqualFold(proto, "icmp"):
		q.Proto = icmp
	case !known:
		return app.Usage("%q: want tcp, udp, sctp or icmp, not %q", text, proto)
	default:
		q.Proto = number
	}
	if q.Proto == icmp && q.DstPort != 0 {
		return app.Usage("%q: icmp has no ports", text)
	}
	if q.Proto != icmp && q.DstPort == 0 {
		return app.Usage("%q: %s needs a port", text, proto)
	}
	return nil
}

// print prints the hops place by place, and the verdict.
func (t *tracing) print(answer *trace.Answer) {
	s := t.Style(t.Stdout)
	fmt.Fprintln(t.Stdout, s.Bold(answer.Packet))
	place := ""
	for _, h := range answer.Hops {
		at := h.Place
		if h.Node != "" {
			at = h.Node + ": " + h.Place
		}
		if at != place {
			place = at
			fmt.Fprintln(t.Stdout, s.Bold(place))
		}
		fmt.Fprintln(t.Stdout, term.Sprintf("  %s %s", t.state(s, h.State), h.Text))
		switch {
		case h.Differs:
			fmt.Fprintln(t.Stdout, term.Sprintf("          %s", s.Bad("live, differs: "+h.Observed)))
		case h.Observed != "":
			fmt.Fprintln(t.Stdout, term.Sprintf("          %s", s.Dim("live, same: "+h.Observed)))
		}
	}
	word := map[trace.State]term.Shown{trace.Passes: s.Good("arrives"), trace.Stops: s.Bad("does not arrive"),
		trace.Unknown: s.Doubt("cannot tell")}[answer.Verdict]
	if answer.Differs {
		word = s.Bad("not as predicted")
	}
	fmt.Fprintln(t.Stdout, term.Sprintf("%s: %s", word, answer.Why))
	if answer.Fix != "" {
		fmt.Fprintln(t.Stdout, term.Sprintf("  fix: %s", answer.Fix))
	}
	if answer.Look != "" {
		fmt.Fprintln(t.Stdout, term.Sprintf("  look: %s", answer.Look))
	}
	if answer.Result != "" {
		fmt.Fprintln(t.Stdout, term.Sprintf("live: %s", answer.Result))
	}
}

// state returns the mark of a hop, eight columns wide.
func (t *tracing) state(s term.Style, state trace.State) term.Shown {
	text := fmt.Sprintf("%-7s", state)
	switch state {
	case trace.Stops:
		return s.Bad(text)
	case trace.Unknown:
		return s.Doubt(text)
	}
	return s.Good(text)
}
