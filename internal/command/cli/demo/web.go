package demo

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/spf13/cobra"
)

// The demo's server and client are two hidden commands, which `fairlead demo` runs in its containers. They contain
// the little HTTP they need, because net/http would make the command larger by 1.7 MB.
const (
	serveName = "demo-serve"
	fetchName = "demo-fetch"
)

const fetchTime = 5 * time.Second // time limit of an answer

// ServeCommand returns the hidden web server on port 80. It prints a line on stdout once it listens.
func ServeCommand(a *app.App) *cobra.Command {
	return &cobra.Command{
		Use: serveName, Hidden: true, Args: app.Operands("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			l, err := net.Listen("tcp", ":80")
			if err != nil {
				return err
			}
			fmt.Fprintln(a.Stdout, "listening")
			for {
				conn, err := l.Accept()
				if err != nil {
					return err
				}
				go greet(conn, args[0])
			}
		},
	}
}

// greet answers one request with the server's name and the client's address.
func greet(conn net.Conn, name string) {
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(fetchTime))
	r := bufio.NewReader(conn)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		if strings.TrimSpace(line) == "" {
			break
		}
	}
	host, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
	body := fmt.Sprintf("%s %s\n", name, host)
	fmt.Fprintf(conn, "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// fetched is the answer to one request.
type fetched struct {
	Server string        `json:"server"` // the server's name
	Seen   string        `json:"seen"`   // our address as the server saw it
	Took   time.Duration `json:"tookNanoseconds"`
	Error  string        `json:"error,omitempty"`
}

// fetch fetches from the server at a host and port.
func fetch(addr string) fetched {
	start := time.Now()
	f, err := func() (f fetched, err error) {
		conn, err := net.DialTimeout("tcp", addr, fetchTime)
		if err != nil {
			return f, err
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(fetchTime))
		if _, err := fmt.Fprintf(conn, "GET / HTTP/1.0\r\nHost: %s\r\n\r\n", addr); err != nil {
			return f, err
		}
		answer, err := io.ReadAll(conn)
		if err != nil {
			return f, err
		}
		status, rest, _ := strings.Cut(string(answer), "\r\n")
		_, body, _ := strings.Cut(rest, "\r\n\r\n")
		if n, _ := fmt.Sscan(body, &f.Server, &f.Seen); !strings.Contains(status, " 200 ") || n != 2 {
			return f, fmt.Errorf("the server answered %q", answer)
		}
		return f, nil
	}()
	f.Took = time.Since(start)
	if err != nil {
		f.Error = err.Error()
	}
	return f
}

// FetchCommand returns the hidden client. It fetches each address that it reads on stdin, one per line, and answers
// with a JSON document.
func FetchCommand(a *app.App) *cobra.Command {
	return &cobra.Command{
		Use: fetchName, Hidden: true, Args: app.Operands(""),
		RunE: func(c *cobra.Command, args []string) error {
			fmt.Fprintln(a.Stdout, "listening")
			out := json.NewEncoder(a.Stdout)
			for in := bufio.NewScanner(a.Stdin); in.Scan(); {
				if err := out.Encode(fetch(in.Text())); err != nil {
					return err
				}
			}
			return nil
		},
	}
}
