package grant

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"time"
)

// Socket returns where the agent of a network answers, by HTTP.
func Socket(network string) string { return filepath.Join(Dir, network+".sock") }

// patience is how long a call waits for more addresses.
const patience = 2 * time.Second

// ErrFixed means that the agent cannot get other ranges for the node.
var ErrFixed = errors.New("the agent gets no other ranges")

// Ask has the agent of a network look whether the node can get more addresses, and returns when the grant says so.
func Ask(ctx context.Context, network string) error {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", Socket(network))
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if _, err := io.WriteString(c, "POST /want HTTP/1.0\r\nHost: agent\r\nContent-Length: 0\r\n\r\n"); err != nil {
		return fmt.Errorf("ask %s: %w", Socket(network), err)
	}
	line, err := bufio.NewReader(io.LimitReader(c, 1<<10)).ReadString('\n')
	if err != nil {
		return fmt.Errorf("answer of %s: %w", Socket(network), err)
	}
	if words := strings.Fields(line); len(words) < 2 || words[1] != "200" {
		return fmt.Errorf("%s: %w: %s", Socket(network), ErrFixed, strings.TrimSpace(line))
	}
	return nil
}
