package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
	"github.com/fairlead-cni/fairlead/internal/ipam/disk"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

// A timed is a member of a fleet with one block, which a silent node loses after an hour. The test sets its clock.
type timed struct {
	*Member
	*testing.T
	passes chan struct{} // the member has nothing to do
	failed chan struct{}
	viewed chan struct{} // its view changed
}

const (
	hour = int64(time.Hour)
	kept = hour * 9 / 10
)

// oneTimedBlock replaces the pools of the cluster, and returns a clock.
func oneTimedBlock(t *testing.T, s *Store) *atomic.Int64 {
	t.Helper()
	setPools(t, s, blocks.Pool{Name: "p", Prefix: netip.MustParsePrefix("10.9.0.0/26"), Bits: 26, Parts: 1, Reclaim: blocks.LeastDelay})
	clock := new(atomic.Int64)
	clock.Store(disk.Uptime())
	return clock
}

func newTimed(t *testing.T, node string, clock *atomic.Int64) *timed {
	m := &timed{member(t.Output(), dial(t, address), node, 1), t, make(chan struct{}, 1), make(chan struct{}, 1),
		make(chan struct{}, 1)}
	m.clock, m.Idle = clock.Load, time.Hour
	m.before = func(a blocks.Action) {
		if a == nil {
			notify(m.passes)
		}
	}
	m.Failed = func(error) { notify(m.failed) }
	return m
}

// pass waits until the member has done what there was to do, at this time or later.
func (m *timed) pass() {
	m.Helper()
	select {
	case <-m.passes:
	default:
	}
	for range 2 { // the first one may have begun before
		notify(m.changed)
		m.await(m.passes)
	}
}

func (m *timed) await(c <-chan struct{}) {
	m.Helper()
	select {
	case <-c:
	case <-m.Context().Done():
		m.Fatal("nothing happens")
	case <-time.After(time.Until(nstest.Deadline(m.T))):
		m.Fatal("nothing happens")
	}
}

// follow has the view of a member say what etcd does.
func (m *timed) follow() {
	go m.Store.Follow(m.Context(), m.View, func(freed bool) {
		if freed {
			m.Freed()
		}
		m.ViewChanged()
		notify(m.viewed)
	}, func(err error) { m.T.Log(err) })
}

// knowsOf waits until the view of a member has so many beats.
func (m *timed) knowsOf(beats int) {
	for len(m.View.All(blocks.BeatKey)) != beats {
		m.await(m.viewed)
	}
}

// knowsLast waits until the view of a member has the last beats, and the member has looked at them.
func (m *timed) knowsLast(s *Store) {
	v, err := s.Look(m.Context())
	if err != nil {
		m.Fatal(err)
	}
	for !reflect.DeepEqual(m.View.All(blocks.BeatKey), v.All(blocks.BeatKey)) {
		m.await(m.viewed)
	}
	m.pass()
}

// passTime lets a time pass in small steps, in each of which members do what there is to do.
func passTime(clock *atomic.Int64, d time.Duration, all ...*timed) {
	const step = 2 * time.Minute
	for ; d > 0; d -= step {
		clock.Add(int64(min(d, step)))
		for _, m := range all {
			m.pass()
		}
	}
}

// until returns the deadline in the grant of a node.
func until(t *testing.T, node string) (end int64) {
	t.Helper()
	g, err := grant.Read(node)
	if err != nil || len(g.Until) != 1 {
		t.Fatalf("%+v, %v: want one range with a deadline", g, err)
	}
	for _, end = range g.Until {
	}
	return end
}

// ownsNow returns how many blocks etcd says that a node owns.
func ownsNow(t *testing.T, s *Store, node string) int {
	t.Helper()
	v, err := s.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n, err := v.Member(node)
	if err != nil {
		t.Fatal(err)
	}
	return n.Blocks
}

// The block of a node whose agent ended goes to another one after the time of the pool, and not before. The node's grant says an
// earlier end. When it returns, it has no block, names the container that it lost, and may get blocks again.
func TestSilentNode(t *testing.T) {
	s := startEtcd(t)
	clock := oneTimedBlock(t, s)
	a, b := newTimed(t, "a", clock), newTimed(t, "b", clock)
	sent := clock.Load()
	a.rest(t)
	expect(t, "a", 1)
	if end := until(t, "a"); end != sent+kept {
		t.Errorf("the deadline is %v after the claim, want %v", time.Duration(end-sent), time.Duration(kept))
	}
	leases, x := allocator("a"), spec.Owner{Network: "a", ContainerID: "x", IfName: "eth0"}
	if _, err := leases.Allocate(t.Context(), x); err != nil {
		t.Fatal(err)
	}

	b.follow()
	b.knowsOf(1)
	stop := b.run(t)
	b.pass()
	clock.Add(2 * hour) // b is stopped, too, and knows nothing of that time
	b.pass()
	if n := ownsNow(t, s, "a"); n != 1 {
		t.Fatalf("a owns %d blocks, though b could not hear it", n)
	}
	passTime(clock, time.Hour-time.Minute, b)
	if n := ownsNow(t, s, "a"); n != 1 {
		t.Fatalf("a owns %d blocks before the time is over", n)
	}
	j, err := (&host{network: "a"}).loadJournal()
	if err != nil {
		t.Fatal(err)
	}
	if fate := b.Fate(j.Node); !strings.Contains(fate, "within 1m0s, it loses its blocks of the pool p") {
		t.Errorf("%q: want what a loses, and when", fate)
	}
	overdue := func(now int64, want string) {
		t.Helper()
		g, err := grant.Read("a")
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(b.View.Overdue(g, now), "\n"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	overdue(sent+kept/10, "")
	overdue(sent+kept-int64(time.Minute), "etcd has not heard of this node for 53m0s, so containers get no address of 10.9.0.0/26 after another 1m0s")
	overdue(sent+kept, "etcd has not heard of this node for 54m0s, so containers get no address of 10.9.0.0/26")
	passTime(clock, time.Minute, b)
	v, err := s.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n, err := v.Member("a"); err != nil || n.Blocks != 0 || n.State != StateReclaimed {
		t.Fatalf("%+v, %v: want no block", n, err)
	}
	graves, err := s.mustConnect(t).Get(t.Context(), s.prefix+string(blocks.GraveKey), clientv3.WithPrefix())
	if err != nil || len(graves.Kvs) != 1 || graves.Kvs[0].Lease == 0 {
		t.Errorf("%v, %v: want a grave that ends", graves, err)
	}
	expect(t, "b", 0)
	if _, err := s.mustConnect(t).Delete(t.Context(), s.prefix+string(blocks.GraveKey), clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	b.pass()
	expect(t, "b", 1)
	stop()

	again := newTimed(t, "a", clock)
	again.rest(t)
	expect(t, "a", 0)
	check(t, s)
	says := func(when, want string) {
		t.Helper()
		again.rest(t)
		if g, err := grant.OfBoot("a"); err != nil || !strings.Contains(g.Missing, want) {
			t.Errorf("%s: %+v, %v: want %q", when, g, err, want)
		}
	}
	says("b has the block", "no block is free in the pool p")
	setPools(t, s, *mustPool(t, s, "p"), blocks.Pool{Name: "q", Prefix: blockOf(11), Bits: 26, Parts: 1})
	again.Pools = nil
	says("x runs", "the addresses of 1 of its containers, such as 10.9.0.2")
	if err := leases.Release(t.Context(), x); err != nil {
		t.Fatal(err)
	}
	again.rest(t)
	if g, err := grant.Read("a"); err != nil || g.Missing != "" || len(g.Ranges) != 1 {
		t.Errorf("%+v, %v: want a block, and nothing missing", g, err)
	}
	check(t, s)
}

func mustPool(t *testing.T, s *Store, name string) *blocks.Pool {
	t.Helper()
	v, err := s.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p, err := v.Pool(name)
	if err != nil {
		t.Fatal(err)
	}
	return &p
}

// A node that beats keeps its block, and writes twenty times in the time of the pool. When the pool has no such time any more, it
// writes nothing and has no deadline.
func TestHeardNode(t *testing.T) {
	s := startEtcd(t)
	clock := oneTimedBlock(t, s)
	a, b := newTimed(t, "a", clock), newTimed(t, "b", clock)
	for _, m := range []*timed{a, b} {
		m.follow()
		m.start(t)
		m.pass()
	}
	expect(t, "a", 1)
	b.knowsOf(1)
	before := s.revision(t)
	passTime(clock, 3*time.Hour, a, b)
	writes := s.writes(t, before, s.revision(t))
	if n := writes[blocks.BeatKey]; n < 40 || n > 60 || len(writes) != 1 {
		t.Errorf("%v: want about 60 beats in three hours, and nothing else", writes)
	}
	if end := until(t, "a"); end <= clock.Load()+kept/2 {
		t.Errorf("the deadline is in %v", time.Duration(end-clock.Load()))
	}
	expect(t, "a", 1)
	check(t, s)

	p := *mustPool(t, s, "p")
	p.Reclaim = 0
	setPools(t, s, p)
	a.pass()
	if g, err := grant.Read("a"); err != nil || len(g.Until) > 0 {
		t.Errorf("%+v, %v: want no deadline", g, err)
	}
	before = s.revision(t)
	passTime(clock, time.Hour, a, b)
	if after := s.revision(t); after != before {
		t.Errorf("%v: want no writes", s.writes(t, before, after))
	}
}

// After etcd was away for longer than the time of the pool, no node loses anything before all could be heard.
func TestSilentEtcd(t *testing.T) {
	s, dir, stopEtcd := startEtcdIn(t)
	clock := oneTimedBlock(t, s)
	a, b := newTimed(t, "a", clock), newTimed(t, "b", clock)
	held, hold := make(chan struct{}), atomic.Bool{}
	idle := a.before
	a.before = func(act blocks.Action) {
		if hold.Load() && act != nil {
			<-held
		}
		idle(act)
	}
	for _, m := range []*timed{a, b} {
		m.follow()
		m.start(t)
		m.pass()
	}
	b.knowsOf(1)
	passTime(clock, 10*time.Minute, a, b)
	expect(t, "a", 1)
	hold.Store(true)
	b.knowsLast(s)
	stopEtcd()
	notify(b.changed)
	b.await(b.failed)
	clock.Add(2 * hour)
	t.Cleanup(runEtcd(t, dir))
	dial(t, address)
	passTime(clock, 50*time.Minute, b)
	if n := ownsNow(t, s, "a"); n != 1 {
		t.Errorf("a owns %d blocks: it could not be heard", n)
	}
	hold.Store(false)
	close(held)
	a.pass()
	if end := until(t, "a"); end <= clock.Load() {
		t.Errorf("the deadline was %v ago", time.Duration(clock.Load()-end))
	}
	passTime(clock, time.Hour, a, b)
	if n := ownsNow(t, s, "a"); n != 1 {
		t.Errorf("a owns %d blocks", n)
	}
	check(t, s)
}

// An agent that is stopped as it is about to write a beat, for two hours, counts from before that. If others took the block
// meanwhile, the beat changes nothing, and the node gives up the block.
func TestStoppedAgent(t *testing.T) {
	for _, others := range []bool{false, true} {
		nstest.Apart(t, map[bool]string{false: "alone", true: "with others"}[others], func(t *testing.T) {
			s := startEtcd(t)
			clock := oneTimedBlock(t, s)
			a, b := newTimed(t, "a", clock), newTimed(t, "b", clock)
			b.Least = 0
			var first atomic.Int64 // when a decided to write a beat
			stopped, goOn := make(chan struct{}), make(chan struct{})
			idle := a.before
			a.before = func(act blocks.Action) {
				txn, is := act.(blocks.Txn)
				isBeat := is && len(txn.Put) == 1 && txn.Put[0].Key.Kind == blocks.BeatKey
				if isBeat && first.CompareAndSwap(0, clock.Load()) {
					close(stopped)
					<-goOn
				}
				if p, is := act.(blocks.Publish); is && first.Load() != 0 && p.Deadlines["p"] == first.Load()+kept {
					notify(a.failed) // the grant gets what the first beat gave
				}
				idle(act)
			}
			for _, m := range []*timed{b, a} {
				m.follow()
				m.start(t)
				m.pass()
			}
			expect(t, "a", 1)
			b.knowsOf(1)
			clock.Add(int64(4 * time.Minute))
			notify(a.changed)
			a.await(stopped)
			clock.Add(int64(time.Minute))
			if others {
				passTime(clock, 2*time.Hour, b)
			} else {
				clock.Add(2 * hour)
			}
			close(goOn)
			if !others {
				a.await(a.failed)
			}
			a.pass()
			n := len(ranges(t, "a"))
			switch {
			case others && n != 0:
				t.Errorf("a is granted %d blocks, and lost all", n)
			case !others && (n != 1 || until(t, "a") <= clock.Load()):
				t.Errorf("a is granted %d blocks: want one, with a later deadline", n)
			}
			check(t, s)
		})
	}
}

// behind in the environment makes this program a member whose deadlines are over when it writes them.
const behind = "FAIRLEAD_TEST_BEHIND"

func beBehind() int {
	s, err := Open(Access{Cluster: "c", Endpoints: []string{"http://" + address}})
	if err != nil {
		return 1
	}
	m := member(os.Stderr, s, "a", 1)
	m.clock = func() int64 { return disk.Uptime() - hour }
	m.before = func(a blocks.Action) {
		if a == nil {
			fmt.Println("idle")
		}
	}
	_ = m.Run(context.Background())
	return 1
}

// calls runs the plugin as a runtime does, and returns the code of its error.
func calls(t *testing.T, verb, container string) spec.Code {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Stdin = strings.NewReader(`{"cniVersion":"1.1.0","name":"a","type":"cluster","ipam":{"type":"cluster"}}`)
	cmd.Env = []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + container, "CNI_IFNAME=eth0", "CNI_PATH=/x", "CNI_NETNS=/run/netns/none"}
	out, err := cmd.Output()
	doc, isError := spec.DecodeError(out)
	if isError != (err != nil) {
		t.Fatalf("%s: %s, %v", verb, out, err)
	}
	if isError {
		t.Logf("%s: %s. %s", verb, doc.Msg, doc.Hint)
		return doc.Code
	}
	return 0
}

// After the deadline, the plugin gives no address while the agent is stopped, and when it was killed. It gives one when another
// agent runs. A container that ends needs none of them.
func TestPluginWithoutAgent(t *testing.T) {
	s := startEtcd(t)
	oneTimedBlock(t, s)
	agent := exec.Command("/proc/self/exe")
	agent.Env = append(os.Environ(), behind+"=1")
	agent.Stderr = t.Output()
	agent.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := agent.StdoutPipe()
	if err := errors.Join(err, agent.Start()); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	refused := func(when string) {
		t.Helper()
		if add, status := calls(t, "ADD", "x"), calls(t, "STATUS", "x"); add != spec.CodeTryAgain || status != spec.CodeUnavailable {
			t.Errorf("%s: ADD is %d and STATUS is %d, want 11 and 50", when, add, status)
		}
	}
	if err := agent.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	refused("the agent is stopped")
	_ = agent.Process.Kill()
	_ = agent.Wait()
	refused("the agent was killed")
	if del := calls(t, "DEL", "x"); del != 0 {
		t.Errorf("DEL is %d", del)
	}
	member(t.Output(), s, "a", 1).rest(t)
	if add, status := calls(t, "ADD", "x"), calls(t, "STATUS", "x"); add != 0 || status != 0 {
		t.Errorf("another agent runs: ADD is %d and STATUS is %d", add, status)
	}
}

// While an agent is away, the plugin's deadline stands in the grant. The next agent of the same boot knows it.
func TestDeadlineOfFormerAgent(t *testing.T) {
	s := startEtcd(t)
	clock := oneTimedBlock(t, s)
	newTimed(t, "a", clock).rest(t)
	end := until(t, "a")
	clock.Add(int64(time.Minute))
	a := newTimed(t, "a", clock)
	a.before = func(act blocks.Action) {
		if p, is := act.(blocks.Publish); is && p.Deadlines["p"] != end && p.Deadlines["p"] != clock.Load()+kept {
			t.Errorf("%v: want the former deadline, or one of a beat of this agent", p.Deadlines)
		}
	}
	a.rest(t)
	if got := until(t, "a"); got != clock.Load()+kept {
		t.Errorf("the deadline is in %v", time.Duration(got-clock.Load()))
	}
	if _, err := os.Stat(grant.Path("a")); err != nil {
		t.Error(err)
	}
}
