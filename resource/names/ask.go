package names

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/fairlead-cni/fairlead/spec"
)

// A Question asks the name server to read a record and to listen on its gateways. Without a record, it asks whether
// the server can listen for the network. A Question is one JSON document on a connection, and so is its Answer.
type Question struct {
	Network string `json:"network"`
	Record  string `json:"record,omitempty"` // see RecordOf
}

// An Answer to a Question contains an error text. The text is empty if all is well.
type Answer struct {
	Error string `json:"error,omitempty"`
}

// The limits of a conversation with the name server: its duration, and the bytes that each side sends. The duration
// allows for systemd to start the server.
const (
	AskTime = 10 * time.Second
	AskSize = 1 << 16
)

// Ask asks the server at a socket. If there is no server, or if the server cannot listen, the error says what to do.
func Ask(ctx context.Context, socket string, q Question) error {
	ctx, cancel := context.WithTimeout(ctx, AskTime)
	defer cancel()
	var a Answer
	err := converse(ctx, socket, q, &a)
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		return spec.Errorf(spec.CodeTryAgain, "no name server runs on this host: %w; start `fairlead dns`", err).
			WithHint("The plugin alias starts no program: systemctl enable --now fairlead-dns.socket, or `fairlead " +
				"dns`.")
	case err != nil:
		return spec.Errorf(spec.CodeTryAgain, "ask the name server (`fairlead dns`): %w", err)
	case a.Error != "":
		return spec.Errorf(spec.CodeTryAgain, "name server: %s", a.Error)
	}
	return nil
}

func converse(ctx context.Context, socket string, q Question, a *Answer) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	if err = json.NewEncoder(conn).Encode(q); err == nil {
		err = json.NewDecoder(io.LimitReader(conn, AskSize)).Decode(a)
	}
	if err != nil {
		return errors.Join(ctx.Err(), fmt.Errorf("%s: %w", socket, err))
	}
	return nil
}
