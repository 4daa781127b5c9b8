// Package chaos keeps a host busy with calls for many containers at once, while processes are killed and stopped, the
// packet filter is flushed and reloaded, and the disk is full from time to time.
package chaos

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"golang.org/x/sys/unix"
)

var (
	lasts  = flag.Duration("time", 2*time.Second, "how long calls are made")
	number = flag.Int("containers", 40, "containers of the host")
	width  = flag.Int("width", 16, "calls at a time")
	seed   = flag.Uint64("seed", 1, "of the choice of calls and disturbances")
)

func TestMain(m *testing.M) { nstest.Main(m) }

// No call fails without a cause, no two containers get one address, nothing is left in the end, and daemons do not grow.
func TestChaos(t *testing.T) { newLoad(t, *number, flush).busy() }

// The same beside a firewalld, which takes its time.
func TestChaosBesideFirewalld(t *testing.T) {
	nstest.StartFirewalld(t, "/proc/self/ns/net")
	newLoad(t, max(*number/10, 40), reload).busy()
}

// busy makes calls for a while, and once more for twice as long, with as much to be done in the end.
func (l *load) busy() {
	t, leases := l.T, dhcp(l.T)
	l.warm()
	l.phase(*lasts/3, 1)
	l.drain()
	before := leases.size(t)
	l.phase(*lasts-*lasts/3, 2)
	l.drain()
	after := leases.size(t)
	l.report()
	t.Logf("%s: %d kB and %d descriptors, and %d kB and %d at a third of the time", leases.name, after.kilobytes,
		after.descriptors, before.kilobytes, before.descriptors)

	const more = 8 << 10 // what a garbage collector leaves, in kB
	if after.descriptors > before.descriptors+2 || after.kilobytes > before.kilobytes*5/4+more {
		t.Errorf("%s grows", leases.name)
	}
}

// A disturbance is something that is done to the host and that calls may fail of.
type disturbance string

const (
	kill   disturbance = "kill"
	stop   disturbance = "stop"
	flush  disturbance = "flush"
	reload disturbance = "firewalld --reload"
	full   disturbance = "full disk"
)

// excuses are the calls that may fail while something is done to the host. DEL has to succeed on a full disk, too.
var excuses = map[disturbance][]string{
	kill:   {"add", "check", "del", "gc", "repair"}, // only those that were killed
	flush:  {"add", "check", "repair"},
	reload: {"add", "check", "repair"},
	full:   {"add", "check", "gc", "repair"},
}

// A load is what a host is busy with.
type load struct {
	*testing.T
	program string
	all     []*container
	rules   disturbance // of the packet filter
	before  []string    // what stays of networks that had a container once

	mu      sync.Mutex
	holder  map[string]*container // of an address
	running map[*call]bool
	active  map[disturbance]bool
	ended   chan struct{} // one for each call that has ended
	count   map[string]int
	took    map[string][]time.Duration
	failed  int
}

// A call is a run of fairlead.
type call struct {
	verb    string
	c       *container
	cmd     *exec.Cmd
	excused []disturbance
}

func newLoad(t *testing.T, number int, rules disturbance) *load {
	t.Helper()
	program, all := newHost(t, number)
	return &load{T: t, program: program, all: all, rules: rules, holder: map[string]*container{}, running: map[*call]bool{},
		active: map[disturbance]bool{}, ended: make(chan struct{}, 10000), count: map[string]int{},
		took: map[string][]time.Duration{}}
}

// warm attaches a container of each network, and notes what stays of it.
func (l *load) warm() {
	known := map[string]bool{}
	for _, c := range l.all {
		if !known[c.network] {
			known[c.network] = true
			l.call("add", c)
			l.call("del", c)
		}
	}
	l.before = left(l.T)
}

// phase makes calls for a time, with as many workers as calls may run at once, and disturbs them.
func (l *load) phase(lasts time.Duration, n uint64) {
	end := time.Now().Add(lasts)
	var workers sync.WaitGroup
	for w := range *width {
		random := rand.New(rand.NewPCG(*seed*1000+n, uint64(w)))
		workers.Go(func() {
			for time.Now().Before(end) {
				l.one(random)
			}
		})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.disturb(rand.New(rand.NewPCG(*seed*1000+n, 1<<32)), end)
	}()
	workers.Wait()
	<-done
}

// one makes a call for a container that no other call concerns.
func (l *load) one(random *rand.Rand) {
	l.mu.Lock()
	i := random.IntN(len(l.all))
	for l.all[i].busy {
		i = (i + 1) % len(l.all)
	}
	c := l.all[i]
	c.busy = true
	l.mu.Unlock()

	dice := random.IntN(100)
	switch {
	case c.known == absent:
		l.call("add", c)
	case c.known == unclear || dice < 45:
		l.call("del", c)
	case dice < 50:
		l.call("gc", c)
	default:
		l.call("check", c)
	}

	l.mu.Lock()
	c.busy = false
	l.mu.Unlock()
}

// args are those of a call of fairlead. GC has to take c alone.
func (l *load) args(verb string, c *container) (args, env []string) {
	switch verb {
	case "repair":
		return []string{verb}, nil
	case "gc":
		args = []string{verb, c.network, "--force"}
		for _, valid := range l.all {
			if valid != c && valid.network == c.network {
				args = append(args, "--valid", valid.id+"/eth0")
			}
		}
		return args, nil
	}
	if verb == "add" && c.network != "lease" {
		env = []string{fmt.Sprintf(`CAP_ARGS={"portMappings":[{"hostPort":%d,"containerPort":80,"protocol":"tcp"}]}`, c.port)}
	}
	return []string{verb, c.network, c.netns, "--container-id", c.id, "-o", "json"}, env
}

// call makes a call, and judges it.
func (l *load) call(verb string, c *container) {
	args, env := l.args(verb, c)
	var out, complaint bytes.Buffer
	k := &call{verb: verb, c: c, cmd: exec.Command(l.program, args...)}
	k.cmd.Env = append(os.Environ(), env...)
	k.cmd.Stdout, k.cmd.Stderr = &out, &complaint
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}

	l.mu.Lock()
	for d := range l.active {
		k.excused = append(k.excused, d)
	}
	if verb == "del" || verb == "gc" {
		l.releases(c)
	}
	begin := time.Now()
	err := k.cmd.Start()
	l.running[k] = true
	l.mu.Unlock()
	if err == nil {
		err = k.cmd.Wait()
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.running, k)
	l.took[verb] = append(l.took[verb], time.Since(begin))
	l.judge(k, err, out.Bytes(), complaint.String())
	select {
	case l.ended <- struct{}{}:
	default:
	}
}

// judge says what a call that has ended made of its container, and whether it had a reason to fail.
func (l *load) judge(k *call, err error, out []byte, complaint string) {
	c := k.c
	l.count[k.verb]++
	if err != nil {
		l.count[k.verb+" failed"]++
		may := func(d disturbance) bool { return slices.Contains(excuses[d], k.verb) }
		if !slices.ContainsFunc(k.excused, may) && (k.verb != "check" || !c.bare) {
			l.complain("%s %s, beside %v: %v\n%s%s", k.verb, c, k.excused, err, out, complaint)
		}
		if c != nil && k.verb != "check" {
			c.known = unclear
		}
		return
	}
	switch k.verb {
	case "add":
		c.known = attached
		c.bare = slices.Contains(k.excused, l.rules)
		l.holds(c, out)
	case "del", "gc":
		c.known = absent
	}
}

// complain reports a broken law. There may be many for one fault.
func (l *load) complain(format string, args ...any) {
	const enough = 10
	if l.failed++; l.failed <= enough {
		l.Errorf(format, args...)
	}
}

// holds notes the addresses that a container has from now on.
func (l *load) holds(c *container, result []byte) {
	var got struct{ IPs []struct{ Address string } }
	if err := json.Unmarshal(result, &got); err != nil || len(got.IPs) == 0 {
		l.complain("ADD of %s: %v, no address in %s", c, err, result)
	}
	for _, ip := range got.IPs {
		if other := l.holder[ip.Address]; other != nil {
			l.complain("%s has %s, and so has %s", c, ip.Address, other)
		}
		l.holder[ip.Address] = c
		c.addrs = append(c.addrs, ip.Address)
	}
}

func (l *load) releases(c *container) {
	for _, a := range c.addrs {
		delete(l.holder, a)
	}
	c.addrs = nil
}

func (c *container) String() string {
	if c == nil {
		return "all"
	}
	return c.network + "/" + c.id
}

// disturb does something to the host each time that some calls have ended.
func (l *load) disturb(random *rand.Rand, end time.Time) {
	const calls = 25
	kinds := []disturbance{kill, kill, kill, kill, stop, stop, full, l.rules}
	for l.after(calls, time.Until(end)) {
		d := kinds[random.IntN(len(kinds))]
		l.mu.Lock()
		l.count[string(d)]++
		l.mu.Unlock()
		switch d {
		case kill:
			l.kill(random)
		case stop:
			l.stop(random)
		case flush:
			l.during(d, func() {
				l.must(exec.Command("nft", "flush", "ruleset"))
				l.call("repair", nil)
			})
		case reload:
			l.during(d, func() {
				l.must(exec.Command("firewall-cmd", "--reload"))
				l.call("repair", nil)
			})
		case full:
			l.during(d, func() {
				l.try(disks().Fill())
				l.after(calls, time.Second)
				l.try(disks().Empty())
			})
		}
	}
}

// after waits until some calls have ended, for a time at most. It reports whether the calls have ended.
func (l *load) after(calls int, most time.Duration) bool {
	late := time.After(most)
	for range calls {
		select {
		case <-l.ended:
		case <-late:
			return false
		}
	}
	return true
}

// during does something that calls which run meanwhile may fail of.
func (l *load) during(d disturbance, do func()) {
	l.mu.Lock()
	l.active[d] = true
	for k := range l.running {
		k.excused = append(k.excused, d)
	}
	l.mu.Unlock()

	do()

	l.mu.Lock()
	delete(l.active, d)
	l.mu.Unlock()
}

func (l *load) must(cmd *exec.Cmd) {
	if out, err := cmd.CombinedOutput(); err != nil {
		l.try(fmt.Errorf("%v: %w: %s", cmd.Args, err, out))
	}
}

func (l *load) try(err error) {
	if err != nil {
		l.Error(err)
	}
}

// victim is a call that runs; one that holds a lock, where there is one.
func (l *load) victim(random *rand.Rand) *call {
	locks, _ := os.ReadFile("/proc/locks")
	var all, holders []*call
	for k := range l.running {
		if k.cmd.Process == nil {
			continue
		}
		all = append(all, k)
		if bytes.Contains(locks, fmt.Appendf(nil, " WRITE %d ", k.cmd.Process.Pid)) {
			holders = append(holders, k)
		}
	}
	if len(holders) > 0 && random.IntN(2) == 0 {
		all = holders
	}
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b *call) int { return cmp.Compare(a.cmd.Process.Pid, b.cmd.Process.Pid) })
	return all[random.IntN(len(all))]
}

// kill kills a call with its plugins, or a plugin alone.
func (l *load) kill(random *rand.Rand) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.victim(random)
	if k == nil {
		return
	}
	k.excused = append(k.excused, kill)
	pid := k.cmd.Process.Pid
	plugins, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", pid))
	if one := strings.Fields(string(plugins)); len(one) > 0 && random.IntN(2) == 0 {
		if child, err := strconv.Atoi(one[0]); err == nil {
			unix.Kill(child, unix.SIGKILL)
			return
		}
	}
	unix.Kill(-pid, unix.SIGKILL)
}

// stop stops a call with its plugins until some others have ended, or none can end.
func (l *load) stop(random *rand.Rand) {
	l.mu.Lock()
	k := l.victim(random)
	if k != nil {
		unix.Kill(-k.cmd.Process.Pid, unix.SIGSTOP)
	}
	l.mu.Unlock()
	if k == nil {
		return
	}
	l.after(30, 3*time.Second)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running[k] {
		unix.Kill(-k.cmd.Process.Pid, unix.SIGCONT)
	}
}

// drain deletes what has failed, looks at what lives, deletes all, and then looks at what is left.
func (l *load) drain() {
	all := func(verb string, of status) {
		l.each(func(c *container) {
			if c.known == of {
				l.call(verb, c)
			}
		})
	}
	all("del", unclear)
	l.call("repair", nil)
	for _, c := range l.all {
		c.bare = false
	}
	all("check", attached)
	all("del", attached)
	for name := range lists() {
		l.must(exec.Command(l.program, "gc", name, "--all", "--force"))
	}
	known := func(thing string) bool { return slices.Contains(l.before, thing) }
	if more := slices.DeleteFunc(left(l.T), known); len(more) > 0 {
		l.Errorf("%d things are left, among them\n%s", len(more), strings.Join(more[:min(len(more), 20)], "\n"))
	}
}

// each does something for all containers, for several at a time.
func (l *load) each(do func(*container)) {
	var workers sync.WaitGroup
	next := make(chan *container)
	for range *width {
		workers.Go(func() {
			for c := range next {
				do(c)
			}
		})
	}
	for _, c := range l.all {
		next <- c
	}
	close(next)
	workers.Wait()
}

// report says what was done, and how long calls took.
func (l *load) report() {
	for _, what := range slices.Sorted(maps.Keys(l.count)) {
		l.Logf("%6d %s", l.count[what], what)
	}
	for _, verb := range slices.Sorted(maps.Keys(l.took)) {
		took := l.took[verb]
		slices.Sort(took)
		l.Logf("%-6s half within %v, all but one of 100 within %v, all within %v", verb,
			took[len(took)/2].Round(time.Millisecond), took[len(took)*99/100].Round(time.Millisecond),
			took[len(took)-1].Round(time.Millisecond))
	}
}
