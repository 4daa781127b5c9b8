// Package metrics is fairlead metrics: it counts attachments, leases, drift, repairs and calls, and prints or serves
// them as OpenMetrics. What is counted elsewhere is recorded here as well (RecordRepair).
package metrics

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/dhcp/daemon"
	"github.com/spf13/cobra"
)

// metricsFlags are those of metrics.
type metricsFlags struct {
	textfile, listen string
	drift            bool
}

// Command is `fairlead metrics`.
func Command(a *app.App) *cobra.Command {
	var f metricsFlags
	c := &cobra.Command{
		Use: "metrics", GroupID: "look", Args: app.Operands(""),
		Short: "Print metrics for Prometheus: attachments, addresses, calls of plugins, repairs",
		Long: `Print metrics in the text format of Prometheus: attachments and leases by state, the use of each range,
durations and errors of plugin calls, and the last repair. Durations and errors come from the log of calls, so
logging has to be on (fairlead log --help).

--textfile writes a file for the textfile collector of node_exporter, and replaces the former file in one step: have a
timer run the command each minute. --listen serves HTTP on a Unix socket of mode 0600 until a signal; if systemd
opened a socket for the command, it serves that socket. docs/metrics.md lists all metrics.

The exit status is 1 if the command could not read something, which fairlead_problems counts.`,
		Example: `  fairlead metrics
  fairlead metrics --textfile /var/lib/node_exporter/fairlead.prom
  fairlead metrics --listen unix:/run/fairlead-metrics.sock`,
		RunE: func(c *cobra.Command, args []string) error { return metrics(a, f) },
	}
	c.Flags().StringVar(&f.textfile, "textfile", "", "write to `FILE` with mode 0644 instead of stdout")
	c.Flags().StringVar(&f.listen, "listen", "", "serve HTTP on unix:`PATH`")
	c.Flags().BoolVar(&f.drift, "drift", false,
		"also count attachments that differ from their plan, in about 1 ms for each attachment")
	return c
}

func metrics(a *app.App, f metricsFlags) error {
	path, unix := strings.CutPrefix(f.listen, "unix:")
	switch {
	case a.JSON():
		return app.Usage("-o json: metrics have the text format of Prometheus, and no other")
	case f.listen != "" && f.textfile != "":
		return app.Usage("--textfile, --listen: want one of them")
	case f.listen != "" && (!unix || !strings.HasPrefix(path, "/")):
		return app.Usage("--listen %q: want unix: and the absolute path of a socket", f.listen)
	}
	ctx := a.Interruptible()
	if f.listen != "" {
		return serveMetrics(ctx, a, path, f.drift)
	}
	m := collectMetrics(ctx, a, f.drift)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	for _, p := range m.problems {
		a.Note("%s", p)
		a.Status = app.ExitFailure
	}
	if f.textfile != "" {
		return app.ReplaceFile(f.textfile, m.text(), 0o644) // node_exporter is another user
	}
	_, err := a.Stdout.Write(m.text())
	return err
}

// metricsTime is what a client has for its request, and for reading the answer.
const metricsTime = 10 * time.Second

// serveMetrics answers HTTP until ctx ends. That is little of it: package net/http is a third of the program's size.
func serveMetrics(ctx context.Context, a *app.App, path string, drift bool) error {
	l, err := daemon.Listener(path, 0o600)
	if err != nil {
		return err
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	a.Note("listening on %s", l.Addr())
	daemon.Notify("READY=1")
	said := map[string]bool{}
	var one sync.Mutex
	collect := func() []byte {
		one.Lock()
		defer one.Unlock()
		m := collectMetrics(ctx, a, drift)
		for _, p := range m.problems {
			if !said[p] {
				a.Note("%s", p)
			}
			said[p] = true
		}
		return m.text()
	}
	for {
		conn, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		go func() {
			defer conn.Close()
			if err := answerHTTP(conn, collect); err != nil && !errors.Is(err, io.EOF) {
				a.Note("a client of the metrics: %v", err)
			}
		}()
	}
}

// answerHTTP answers one request.
func answerHTTP(conn net.Conn, collect func() []byte) error {
	conn.SetDeadline(time.Now().Add(metricsTime))
	const longest = 16 << 10
	in := bufio.NewReader(io.LimitReader(conn, longest))
	request, err := in.ReadString('\n')
	for line := request; strings.TrimSpace(line) != ""; {
		if err != nil {
			return err
		}
		line, err = in.ReadString('\n')
	}
	status, body := "200 OK", []byte(nil)
	word := append(strings.Fields(request), "", "")
	switch target, _, _ := strings.Cut(word[1], "?"); {
	case word[0] != "GET" && word[0] != "HEAD":
		status = "405 Method Not Allowed"
	case target != "/metrics" && target != "/":
		status = "404 Not Found"
	default:
		body = collect()
	}
	head := fmt.Sprintf("HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n", status,
		"text/plain; version=0.0.4; charset=utf-8", len(body))
	if word[0] == "HEAD" {
		body = nil
	}
	conn.SetDeadline(time.Now().Add(metricsTime))
	_, err = conn.Write(append([]byte(head), body...))
	return err
}
