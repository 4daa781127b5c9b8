package exchange

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const secret = "a secret of more than thirty-two bytes"

// A network carries datagrams between the agents of two nodes.
type network struct {
	t    *testing.T
	a, b *Exchange

	// lose drops a datagram. Nil: nothing is lost.
	lose func() bool
	mu   sync.Mutex
	sent map[string][][]byte // by the node that sent
}

// newNetwork has b answer with a text.
func newNetwork(t *testing.T, answer []byte) *network {
	n := &network{t: t, sent: map[string][][]byte{}}
	known := func() ([]byte, error) { return []byte(secret), nil }
	n.a = &Exchange{Node: "a", Secret: known, Send: n.send("a")}
	n.b = &Exchange{Node: "b", Secret: known, Send: n.send("b")}
	n.b.Answer = func(_ context.Context, node string, question []byte) []byte {
		if node != "a" || string(question) != "what?" {
			t.Errorf("%s asks %q", node, question)
		}
		return answer
	}
	return n
}

func (n *network) send(from string) func(string, []byte) {
	return func(to string, datagram []byte) {
		n.mu.Lock()
		n.sent[from] = append(n.sent[from], datagram)
		isLost := n.lose != nil && n.lose()
		n.mu.Unlock()
		receiver := map[string]*Exchange{"a": n.a, "b": n.b}[to]
		if !isLost {
			go receiver.Receive(n.t.Context(), from, datagram)
		}
	}
}

// sentBy returns how many datagrams a node has sent.
func (n *network) sentBy(node string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.sent[node])
}

// answerOf is a text that does not become shorter.
func answerOf(size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(rand.IntN(256))
	}
	return b
}

// An answer of many datagrams arrives, also where some are lost, and none is longer than a path of 1,280 bytes carries.
func TestAnswer(t *testing.T) {
	for name, lose := range map[string]func() bool{"all arrive": nil, "a fifth is lost": func() bool { return rand.IntN(5) == 0 }} {
		t.Run(name, func(t *testing.T) {
			want := answerOf(30 * partBytes)
			n := newNetwork(t, want)
			n.lose = lose
			got, err := n.a.Ask(t.Context(), "b", []byte("what?"))
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d bytes of %d, %v", len(got), len(want), err)
			}
			n.mu.Lock()
			defer n.mu.Unlock()
			for _, datagram := range append(n.sent["a"], n.sent["b"]...) {
				const headers = 48 // of IPv6 and UDP
				if len(datagram) > 1280-headers-4 {
					t.Errorf("a datagram of %d bytes", len(datagram))
				}
			}
		})
	}
}

// What is too long for the other agent to send is an error, and no partial answer.
func TestTooLong(t *testing.T) {
	n := newNetwork(t, answerOf(partBytes*mostParts+1))
	if got, err := n.a.Ask(t.Context(), "b", []byte("what?")); !errors.Is(err, errTooLong) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// An agent says nothing to those who do not know the secret, or are not the node in whose name they ask: not even that it
// refuses. What was heard on the way is of no use to others.
func TestForged(t *testing.T) {
	n := newNetwork(t, []byte("the rules"))
	if _, err := n.a.Ask(t.Context(), "b", []byte("what?")); err != nil {
		t.Fatal(err)
	}
	n.mu.Lock()
	real, answered := n.sent["a"][0], n.sent["b"][0]
	n.mu.Unlock()
	other := func(change func(*Exchange)) []byte {
		var sealed []byte
		e := &Exchange{Node: "a", Secret: n.a.Secret, Send: func(_ string, datagram []byte) { sealed = datagram }}
		change(e)
		if err := e.send(message{ID: "forged", To: "b", Asks: true, Data: []byte("what?")}); err != nil {
			t.Fatal(err)
		}
		return sealed
	}
	flipped := bytes.Clone(real)
	flipped[len(flipped)-1] ^= 1
	for name, forged := range map[string]struct {
		from     string
		datagram []byte
	}{
		"nothing":              {"a", nil},
		"a text":               {"a", []byte(strings.Repeat("x", 200))},
		"another byte":         {"a", flipped},
		"another node":         {"c", real},
		"another secret":       {"a", other(func(e *Exchange) { e.Secret = func() ([]byte, error) { return make([]byte, 32), nil } })},
		"another name":         {"a", other(func(e *Exchange) { e.Node = "c" })},
		"an answer of its own": {"b", answered},
	} {
		before := n.sentBy("b")
		n.b.Receive(t.Context(), forged.from, forged.datagram)
		if n.sentBy("b") != before || n.b.lastServed() == "forged" {
			t.Errorf("%s: has an answer", name)
		}
	}
	for name, e := range map[string]*Exchange{
		"no secret":      {Node: "b", Secret: func() ([]byte, error) { return nil, nil }},
		"a short secret": {Node: "b", Secret: func() ([]byte, error) { return []byte("short"), nil }},
	} {
		e.Send = func(string, []byte) { t.Errorf("%s: has an answer", name) }
		e.Receive(t.Context(), "a", real)
		if _, err := e.Ask(t.Context(), "a", nil); !errors.Is(err, ErrNoSecret) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// lastServed returns the identifier of the last question that was answered.
func (e *Exchange) lastServed() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.served[len(e.served)-1].id
}

// However many ask, an agent makes one answer at a time, and says that it is busy.
func TestBusy(t *testing.T) { synctest.Test(t, busy) }

func busy(t *testing.T) {
	n := newNetwork(t, nil)
	var running, calls atomic.Int32
	begun, end := make(chan struct{}, 1), make(chan struct{})
	n.b.Answer = func(context.Context, string, []byte) []byte {
		calls.Add(1)
		if running.Add(1) > 1 {
			t.Error("two answers are made at a time")
		}
		begun <- struct{}{}
		<-end
		running.Add(-1)
		return []byte("late")
	}
	first := make(chan error, 1)
	go func() {
		_, err := n.a.Ask(t.Context(), "b", []byte("what?"))
		first <- err
	}()
	<-begun
	ctx, stop := context.WithTimeout(t.Context(), 2*again)
	defer stop()
	if _, err := n.a.Ask(ctx, "b", []byte("what?")); !errors.Is(err, ErrBusy) {
		t.Errorf("the second: %v", err)
	}
	close(end)
	if err := <-first; err != nil || calls.Load() != 1 {
		t.Errorf("the first: %v, %d calls", err, calls.Load())
	}
}

// An agent that does not answer is an error in time, and one that repeats a question has the same answer again.
func TestSilent(t *testing.T) { synctest.Test(t, silent) }

func silent(t *testing.T) {
	n := newNetwork(t, []byte("yes"))
	n.lose = func() bool { return true }
	ctx, stop := context.WithTimeout(t.Context(), 2*again+again/2)
	defer stop()
	if _, err := n.a.Ask(ctx, "b", []byte("what?")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if sent := n.sentBy("a"); sent < 2 {
		t.Errorf("the question was sent %d times", sent)
	}
	n.mu.Lock()
	asked := n.sent["a"][0]
	n.mu.Unlock()
	for range 3 {
		n.b.Receive(t.Context(), "a", asked)
	}
	n.b.mu.Lock()
	defer n.b.mu.Unlock()
	if len(n.b.served) != 1 {
		t.Errorf("%d answers", len(n.b.served))
	}
}

// Answers are kept for a time, and a number of them.
func TestKept(t *testing.T) {
	n := newNetwork(t, []byte("yes"))
	ask := func(change func(served []*served)) (kept int) {
		t.Helper()
		n.b.mu.Lock()
		n.b.began = time.Time{}
		change(n.b.served)
		n.b.mu.Unlock()
		if _, err := n.a.Ask(t.Context(), "b", []byte("what?")); err != nil {
			t.Fatal(err)
		}
		n.b.mu.Lock()
		defer n.b.mu.Unlock()
		return len(n.b.served)
	}
	kept := 0
	for range 2 * keepMost {
		kept = ask(func([]*served) {})
	}
	if kept != keepMost {
		t.Errorf("%d answers are kept", kept)
	}
	kept = ask(func(served []*served) { served[3].at = time.Now().Add(-2 * keep) })
	if kept != keepMost-1 {
		t.Errorf("%d answers are kept", kept)
	}
}
