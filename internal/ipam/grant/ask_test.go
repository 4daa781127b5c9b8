package grant

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// agentOf lets do answer a call to the agent of the network net.
func agentOf(t *testing.T, do func(net.Conn)) {
	t.Helper()
	if err := os.MkdirAll(Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", Socket("net"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })

	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		do(c)
	}()
}

// A call does not wait longer for a silent agent than its context allows.
func TestAskSilentAgent(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	agentOf(t, func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
			t.Errorf("the question: %v", err)
		}
		cancel()
		select {
		case <-ended:
		case <-time.After(nstest.Patience(t)):
		}
	})

	err := Ask(ctx, "net", Want{})
	close(ended)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("of a silent agent: %v", err)
	}
}

// An agent that ends before it has read the question has not agreed.
func TestAskEndingAgent(t *testing.T) {
	agentOf(t, func(net.Conn) {})
	more := slices.Repeat([]netip.Addr{netip.MustParseAddr("10.1.0.2")}, 100_000) // than a socket has room for

	if err := Ask(t.Context(), "net", Want{Pins: more}); err == nil {
		t.Error("an agent that answers nothing has agreed")
	}
}

// A want comes back from the query of a URL. What is no address is no want.
func TestWant(t *testing.T) {
	for _, w := range []Want{{}, {Pins: []netip.Addr{netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("fd00::1")}},
		{Pools: []string{"a&b", "c"}}} {
		if back, err := WantOf(w.Query()); err != nil || !reflect.DeepEqual(back, w) {
			t.Errorf("%+v comes back as %+v, %v", w, back, err)
		}
	}
	if w, err := WantOf(url.Values{"pin": {"10.1.0.2", "x"}}); err == nil {
		t.Errorf("it is %+v", w)
	}
}

// Without an agent nobody is asked.
func TestAskNobody(t *testing.T) {
	if err := Ask(t.Context(), "none", Want{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of no agent: %v", err)
	}
}

// An agent's answer is not read without end.
func TestAskLongAnswer(t *testing.T) {
	agentOf(t, func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
			t.Errorf("the question: %v", err)
		}
		fmt.Fprintf(c, "HTTP/1.0 409 Conflict\r\n\r\n{\"why\":%q}", strings.Repeat("x", 4<<10))
	})
	if err := Ask(t.Context(), "net", Want{}); !errors.Is(err, ErrFixed) {
		t.Errorf("an answer of more than 4 KiB: %v", err)
	}
}

// The words behind a status are for people, and may be left out (RFC 9112, section 4).
func TestJudge(t *testing.T) {
	if err := judge("net", "HTTP/1.0 200\r\n\r\n"); err != nil {
		t.Errorf("an answer: %v", err)
	}
	var r *Refusal
	if err := judge("net", "HTTP/1.0 409\r\n\r\n"+`{"why":"no block is free"}`); !errors.As(err, &r) {
		t.Errorf("a refusal: %v", err)
	}
	for _, odd := range []string{"HTTP/1.0\r\n\r\n", "", "HTTP/1.0 500 Failed\r\n\r\n" + `{"why":"x"}`,
		"HTTP/1.0 409\r\n\r\n", "HTTP/1.0 409\r\n\r\n{}", "HTTP/1.0 409\r\n\r\n" + `{"why":"x"`} {
		if err := judge("net", odd); !errors.Is(err, ErrFixed) || errors.As(err, &r) {
			t.Errorf("%q: %v", odd, err)
		}
	}
}
