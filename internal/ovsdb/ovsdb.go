// Package ovsdb is a client of the database that configures Open vSwitch: of RFC 7047 what a program needs that
// changes a few rows in one transaction, and waits until ovs-vswitchd has acted on them.
package ovsdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// database is the name of the database, and of its one table that has one row.
const database = "Open_vSwitch"

// limit is how long a call waits for ovsdb-server at most.
const limit = time.Minute

// mostAnswer is how many bytes a call reads at most. A row of a port has some hundred.
const mostAnswer = 64 << 20

// ErrUnavailable is of a server that is not there, or does not answer in time. Another attempt may succeed.
var ErrUnavailable = errors.New("ovsdb-server does not answer")

// ErrNotApplied is that ovs-vswitchd has not acted on a change in time.
var ErrNotApplied = errors.New("ovs-vswitchd does not apply the changes")

// An Error is the server's refusal of a transaction, of which nothing has been done.
type Error struct {
	Code    string `json:"error"` // "constraint violation", "timed out" of a Wait that does not hold, …
	Details string `json:"details"`
}

func (e *Error) Error() string {
	if e.Details == "" {
		return "ovsdb-server: " + e.Code
	}
	return "ovsdb-server: " + e.Code + ": " + e.Details
}

// Changed reports whether err says that the rows are not as they were when the transaction was thought out: a Wait
// does not hold, or another client made a row of the same name first. The caller reads again.
func Changed(err error) bool {
	var e *Error
	return errors.As(err, &e) && (e.Code == "timed out" || e.Code == "constraint violation")
}

// A Conn is a connection to a server. It is not for concurrent use.
type Conn struct {
	conn net.Conn
	in   *io.LimitedReader
	dec  *json.Decoder
	last int // id of the last request
}

// Dial connects to the server that listens on a Unix socket.
func Dial(ctx context.Context, socket string) (*Conn, error) {
	c, err := (&net.Dialer{Timeout: limit}).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	in := &io.LimitedReader{R: c}
	return &Conn{conn: c, in: in, dec: json.NewDecoder(in)}, nil
}

// Close ends the connection.
func (c *Conn) Close() { _ = c.conn.Close() }

// bound ends reading and writing when ctx ends, the time is up, or too much was read. Free ends that.
func (c *Conn) bound(ctx context.Context, limit time.Duration) (free func(), err error) {
	c.in.N = mostAnswer
	if err := c.conn.SetDeadline(time.Now().Add(limit)); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Unix(1, 0)) })
	return func() { stop() }, nil
}

// A message is a request, a response or a notification of JSON-RPC 1.0.
type message struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
	ID     json.RawMessage `json:"id"`
}

// next is the next message that is not the server's question whether this side lives.
func (c *Conn) next() (m message, err error) {
	for {
		m = message{}
		if err := c.dec.Decode(&m); err != nil && c.in.N == 0 {
			return m, fmt.Errorf("ovsdb-server: the answer has more than %d bytes", mostAnswer)
		} else if err != nil {
			return m, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		if m.Method != "echo" {
			return m, nil
		}
		if err := c.write(map[string]any{"result": m.Params, "error": nil, "id": m.ID}); err != nil {
			return m, err
		}
	}
}

func (c *Conn) write(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if _, err := c.conn.Write(b); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return nil
}

// call is one request and its response.
func (c *Conn) call(method string, params []any) (json.RawMessage, error) {
	c.last++
	id := fmt.Sprint(c.last)
	if err := c.write(map[string]any{"method": method, "params": params, "id": c.last}); err != nil {
		return nil, err
	}
	for {
		m, err := c.next()
		switch {
		case err != nil:
			return nil, err
		case m.Method != "" || string(m.ID) != id: // a notification
		case len(m.Error) > 0 && string(m.Error) != "null":
			return nil, fmt.Errorf("ovsdb-server: %s: %s", method, strings.TrimSpace(string(m.Error)))
		default:
			return m.Result, nil
		}
	}
}

// An Answer is what the server says of one operation.
type Answer struct {
	Count int   `json:"count"` // rows that a Mutate or a Delete found
	Rows  []Row `json:"rows"`  // of a Select
}

// Transact does all operations, or none of them: then the error is an *Error. There is an Answer for each.
func (c *Conn) Transact(ctx context.Context, ops ...Op) ([]Answer, error) {
	free, err := c.bound(ctx, limit)
	if err != nil {
		return nil, err
	}
	defer free()
	params := []any{database}
	for _, op := range ops {
		params = append(params, op)
	}
	raw, err := c.call("transact", params)
	if err != nil {
		return nil, ended(ctx, err)
	}
	// A commit that fails has its error behind the answers of all operations; after one that failed come nulls.
	var errs []*Error
	var answers []Answer
	if err := json.Unmarshal(raw, &errs); err != nil {
		return nil, fmt.Errorf("ovsdb-server: answer %.100s: %w", raw, err)
	}
	for _, e := range errs {
		if e != nil && e.Code != "" {
			return nil, e
		}
	}
	if err := json.Unmarshal(raw, &answers); err != nil {
		return nil, fmt.Errorf("ovsdb-server: answer %.100s: %w", raw, err)
	}
	if len(answers) != len(ops) {
		return nil, fmt.Errorf("ovsdb-server: %d answers to %d operations", len(answers), len(ops))
	}
	return answers, nil
}

// ended is err, or that ctx has ended, which it comes of.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.Join(ctx.Err(), err)
	}
	return err
}

// Apply does all operations as Transact does, and returns when ovs-vswitchd has acted on them, or an ErrNotApplied:
// what is in the database stays there then.
func (c *Conn) Apply(ctx context.Context, within time.Duration, ops ...Op) ([]Answer, error) {
	all, err := c.Transact(ctx, append(ops, Mutate(database, nil, "next_cfg", "+=", 1), Select(database, nil,
		"next_cfg"))...)
	if err != nil {
		return nil, err
	}
	answers, rows := all[:len(ops)], all[len(ops)+1].Rows
	if len(rows) != 1 {
		return answers, fmt.Errorf("ovsdb-server: table %s has %d rows, want 1: "+
			"initialize the database (ovs-vsctl init)",
			database, len(rows))
	}
	cfg, _ := rows[0].Int("next_cfg")
	return answers, c.applied(ctx, within, cfg)
}

// applied waits until ovs-vswitchd has acted on the configuration of a number.
func (c *Conn) applied(ctx context.Context, within time.Duration, cfg int) error {
	free, err := c.bound(ctx, within)
	if err != nil {
		return err
	}
	defer free()
	late := func(err error) error {
		var timeout net.Error
		if ctx.Err() == nil && errors.As(err, &timeout) && timeout.Timeout() {
			return fmt.Errorf("%w: no answer within %v", ErrNotApplied, within)
		}
		return ended(ctx, err)
	}
	raw, err := c.call("monitor",
		[]any{database, "cfg", map[string]any{database: map[string]any{"columns": []string{"cur_cfg"}}}})
	if err != nil {
		return late(err)
	}
	for {
		if cur, ok := current(raw); ok && cur >= cfg {
			return nil
		}
		m, err := c.next()
		if err != nil {
			return late(err)
		}
		var params []json.RawMessage
		if raw = nil; m.Method == "update" && json.Unmarshal(m.Params, &params) == nil && len(params) == 2 {
			raw = params[1]
		}
	}
}

// current is cur_cfg in what a monitor tells.
func current(raw json.RawMessage) (cfg int, ok bool) {
	var tables map[string]map[string]struct{ New Row }
	if json.Unmarshal(raw, &tables) != nil {
		return 0, false
	}
	for _, row := range tables[database] {
		if cfg, ok = row.New.Int("cur_cfg"); ok {
			return cfg, true
		}
	}
	return 0, false
}
