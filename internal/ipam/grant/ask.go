package grant

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
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

// A Want is what a container needs and the grant does not have.
type Want struct {
	Pins  []netip.Addr // addresses of pinned pools
	Pools []string     // names of the pools of which it may have an address; none: of any
}

// Query returns the want as the query of a URL, and WantOf reads it.
func (w Want) Query() url.Values {
	q := url.Values{}
	for _, a := range w.Pins {
		q.Add("pin", a.String())
	}
	for _, name := range w.Pools {
		q.Add("pool", name)
	}
	return q
}

// WantOf returns what the query of a URL says.
func WantOf(q url.Values) (w Want, err error) {
	for _, text := range q["pin"] {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return w, fmt.Errorf("pin: %w", err)
		}
		w.Pins = append(w.Pins, a)
	}
	w.Pools = q["pool"]
	return w, nil
}

// A Refusal is the agent's answer if another node has what a container wants. Its text is JSON.
type Refusal struct {
	Why  string `json:"why"`
	Hint string `json:"hint"` // what to do
}

func (r *Refusal) Error() string { return r.Why }

// Ask has the agent of a network look whether the node can get more addresses, and returns when the grant says so. The
// error may be a [Refusal].
func Ask(ctx context.Context, network string, w Want) error {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", Socket(network))
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	_, err = fmt.Fprintf(c, "POST /want?%s HTTP/1.0\r\nHost: agent\r\nContent-Length: 0\r\n\r\n", w.Query().Encode())
	if err != nil {
		return fmt.Errorf("ask %s: %w", Socket(network), err)
	}
	answer, err := io.ReadAll(io.LimitReader(c, 4<<10))
	if err != nil {
		return fmt.Errorf("answer of %s: %w", Socket(network), cmp.Or(context.Cause(ctx), err))
	}
	return judge(network, string(answer))
}

// judge returns what an answer of HTTP says.
func judge(network, answer string) error {
	head, body, _ := strings.Cut(answer, "\r\n\r\n")
	line, _, _ := strings.Cut(head, "\r\n")
	words := strings.Fields(line)
	switch {
	case len(words) >= 2 && words[1] == "200":
		return nil
	case len(words) >= 2 && words[1] == "409":
		r := new(Refusal)
		if err := json.Unmarshal([]byte(body), r); err == nil && r.Why != "" {
			return r
		}
	}
	return fmt.Errorf("%s: %w: %s", Socket(network), ErrFixed, strings.TrimSpace(line))
}
