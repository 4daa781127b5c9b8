// Package exchange lets the agents of two nodes ask each other, in sealed datagrams. An agent answers only what was sealed
// with the key that all agents of the cluster have, and only these can read what it says.
package exchange

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"time"
)

// What an agent spends on others, and how long it waits for them.
const (
	answerTime = 1500 * time.Millisecond // for one answer
	workGap    = 250 * time.Millisecond  // between the begins of two answers, to all nodes together
	keep       = 10 * time.Second        // how long an answer is kept, for parts of it that were lost
	keepMost   = 8                       // answers
	again      = 200 * time.Millisecond  // until a question without an answer is sent again
)

// An Exchange asks the agents of other nodes, and answers them.
type Exchange struct {
	Node string // name of this node

	// Secret returns what all agents of the cluster know, and nothing else does. Empty: there is none, so nothing is
	// asked or answered.
	Secret func() ([]byte, error)

	// Send sends a datagram to the agent of another node. It may be lost.
	Send func(node string, datagram []byte)

	// Answer answers a question of another node. At most one call at a time runs, for a second and a half.
	Answer func(ctx context.Context, node string, question []byte) []byte

	mu     sync.Mutex
	asked  map[string]chan message // by the identifiers of questions
	served []*served               // the last answers
	began  time.Time               // of the last call of Answer
}

// A served is a question of another node, and its answer.
type served struct {
	node, id string
	parts    [][]byte // none: Answer has not returned
	at       time.Time
}

// ErrNoSecret means that the agents of the cluster have no secret, or that this one does not know it.
var ErrNoSecret = errors.New("the agent of this node has no key (--key-file)")

// ErrBusy means that the other agent answered others at that time.
var ErrBusy = errors.New("its agent is answering other questions")

// Ask asks the agent of another node, until ctx ends. The error is that of ctx if nothing came.
func (e *Exchange) Ask(ctx context.Context, node string, question []byte) ([]byte, error) {
	id := rand.Text()
	arrived := make(chan message, 1)
	e.mu.Lock()
	if e.asked == nil {
		e.asked = map[string]chan message{}
	}
	e.asked[id] = arrived
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		delete(e.asked, id)
		e.mu.Unlock()
	}()

	var answer [][]byte
	busy := false
	ticker := time.NewTicker(again)
	defer ticker.Stop()
	for {
		if err := e.send(message{ID: id, To: node, Asks: true, Part: len(answer), Data: question}); err != nil {
			return nil, err
		}
		waits := true
		for waits {
			select {
			case m := <-arrived:
				busy = m.Parts == 0
				if busy || m.Part != len(answer) {
					continue
				}
				if answer = append(answer, m.Data); len(answer) == m.Parts {
					return join(answer)
				}
				waits = false
			case <-ticker.C:
				waits = false
			case <-ctx.Done():
				if busy {
					return nil, ErrBusy
				}
				return nil, ctx.Err()
			}
		}
	}
}

// Receive takes a datagram that came from an address of another node, and returns soon. What is not sealed with the key,
// by that node for this one, has no answer: not even that it is wrong.
func (e *Exchange) Receive(ctx context.Context, node string, datagram []byte) {
	m, err := e.open(datagram)
	if err != nil || m.From != node || m.To != e.Node {
		return
	}
	if m.Asks {
		e.serve(ctx, m)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	select {
	case e.asked[m.ID] <- m: // of an unknown one, the channel is nil
	default:
	}
}

// serve sends the part of the answer that a question asks for, or begins to make the answer.
func (e *Exchange) serve(ctx context.Context, m message) {
	now := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	working := false
	for _, s := range e.served {
		if s.node == m.From && s.id == m.ID {
			e.sendPart(s, m.Part)
			return
		}
		working = working || s.parts == nil
	}
	if working || now.Sub(e.began) < workGap {
		_ = e.send(message{ID: m.ID, To: m.From}) // what is lost is asked for again
		return
	}
	s := &served{node: m.From, id: m.ID, at: now}
	var kept []*served
	for _, former := range e.served[max(0, len(e.served)-keepMost+1):] {
		if now.Sub(former.at) < keep {
			kept = append(kept, former)
		}
	}
	e.served, e.began = append(kept, s), now
	go e.work(ctx, s, m.Data)
}

// work makes an answer, and sends its first part.
func (e *Exchange) work(ctx context.Context, s *served, question []byte) {
	ctx, stop := context.WithTimeout(ctx, answerTime)
	defer stop()
	parts := split(e.Answer(ctx, s.node, question))
	e.mu.Lock()
	defer e.mu.Unlock()
	s.parts = parts
	e.sendPart(s, 0)
}

func (e *Exchange) sendPart(s *served, n int) {
	if n >= 0 && n < len(s.parts) {
		_ = e.send(message{ID: s.id, To: s.node, Part: n, Parts: len(s.parts), Data: s.parts[n]})
	}
}
