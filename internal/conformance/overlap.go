package conformance

import (
	"io"
	"net"
	"path/filepath"
	"time"
)

// overlapLimit is how long a runtime may take to call the first plugin. A check waits so long for a runtime that does
// not call it, as is right.
const overlapLimit = 5 * time.Second

func overlapChecks() []Check {
	only := []Kind{Runtime}
	return []Check{
		{ID: "R8/container", Title: "DEL calls no plugin while an ADD of the container goes on",
			Sentence: `The container runtime must not invoke parallel operations for the same container.`,
			Kinds:    only, run: oneAtATime},
		{ID: "R8/parallel", Title: "an ADD of another container does not wait for an ADD that goes on",
			Sentence: `but is allowed to invoke parallel operations for different containers.`,
			Kinds:    only, run: containersInParallel},
		{ID: "R9/gc", Title: "ADD calls no plugin while a GC of the network goes on",
			Sentence: `The runtime must exclusively execute either gc or add and delete. The runtime must ensure that no add or delete operations are in progress before executing gc, and must wait for gc to complete before issuing new add or delete commands.`,
			Kinds:    only, run: gcExcludes},
	}
}

// A point is the path of a socket. A plugin of the suite connects to it, and goes on when the connection ends.
type point string

// wait is for the plugin. Where nothing listens, the check lets all plugins go on.
func (p point) wait() {
	conn, err := net.Dial("unix", string(p))
	if err != nil {
		return
	}
	defer conn.Close()
	io.Copy(io.Discard, conn)
}

// A stop is a point as the check sees it.
type stop struct {
	at      point
	socket  net.Listener
	reached chan struct{} // closed when a plugin waits
	on      chan struct{} // closed when the plugins go on
}

// stopAt makes a point where plugins wait.
func stopAt(name string) *stop {
	s := &stop{at: point(filepath.Join(logDir, name)), reached: make(chan struct{}), on: make(chan struct{})}
	s.socket = must(net.Listen("unix", string(s.at)))
	go s.hold()
	return s
}

func (s *stop) hold() {
	for first := true; ; first = false {
		conn, err := s.socket.Accept()
		if err != nil {
			return
		}
		if first {
			close(s.reached)
		}
		go func() {
			<-s.on
			conn.Close()
		}()
	}
}

// release lets the plugins go on.
func (s *stop) release() {
	close(s.on)
	require(s.socket.Close())
}

// waiting is the network whose plugin waits at a verb. The plugin is the last letter of its type.
func waiting(plugin, verb string, s *stop) diskNetwork {
	o := order{Wait: map[string]point{verb: s.at}}
	return diskNetwork{plugins: map[string]map[string]any{plugin: orderKey(o)}}
}

// A pending is a call of the runtime that goes on.
type pending struct {
	verb string
	c    *container
	done chan struct{}
	a    *answer
	err  error
}

// begin calls the runtime and does not wait for it.
func (t *trial) begin(verb string, c *container) *pending {
	p := &pending{verb: verb, c: c, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.err = ended(func() { p.a = t.call(verb, c) })
	}()
	return p
}

// end waits for the call, and is its answer.
func (t *trial) end(p *pending) *answer {
	<-p.done
	require(p.err)
	t.last = p.a
	return p.a
}

// held begins a call of the runtime whose plugin waits, and returns when it waits.
func (t *trial) held(plugin, command, verb string, c *container) (*pending, *stop) {
	first := stopAt("first")
	waiting(plugin, verb, first).write()
	p := t.begin(command, c)
	select {
	case <-first.reached:
	case <-p.done:
		a := t.end(p)
		expect(false, "a call of conformance-"+plugin+" with "+verb, "%s", a)
	}
	return p, first
}

// excluded begins a second call of the runtime, whose plugin must not be called before the first call ends. That the
// second call is refused is its own matter.
func (t *trial) excluded(first *pending, at *stop, plugin, command, verb string, c *container) {
	second := stopAt("second")
	waiting(plugin, verb, second).write()
	p := t.begin(command, c)
	overlaps := false
	select {
	case <-second.reached:
		overlaps = true
	case <-p.done:
	case <-time.After(overlapLimit):
	}
	second.release()
	at.release()
	t.end(first)
	t.end(p)
	expect(!overlaps, "no call of a plugin by "+command+" while "+first.verb+" of "+first.c.id+" goes on",
		"%s of conformance-%s", verb, plugin)
}

func oneAtATime(t *trial) {
	c := t.container("c1")
	first, at := t.held("a", "add", "ADD", c)
	t.excluded(first, at, "c", "del", "DEL", c)
}

func gcExcludes(t *trial) {
	t.running(diskNetwork{})
	first, at := t.held("a", "gc", "GC", t.container("c2"))
	t.excluded(first, at, "a", "add", "ADD", t.container("c3"))
}

func containersInParallel(t *trial) {
	first, at := t.held("a", "add", "ADD", t.container("c1"))
	diskNetwork{}.write()
	second := t.begin("add", t.container("c2"))
	late := false
	select {
	case <-second.done:
	case <-time.After(max(overlapLimit, t.limit/6)):
		late = true
	}
	at.release()
	a := t.end(second)
	t.end(first)
	expect(!late, "add of c2 to end while add of c1 goes on", "it waits")
	a.expect(a.failed == nil, "add of c2 to succeed while add of c1 goes on")
}
