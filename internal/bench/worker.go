package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// An order is what the driver asks of a worker.
type order struct {
	Side     string // one of the names of sides
	Dir      string // its plugins
	Case     int
	Populate *load
	From     int       // of Populate: so many are there already; less than none: the host is new
	Measure  int       // the number of the container to attach, check and detach; 0: none
	Watch    bool      // see what the processes have in memory, too
	Burst    *burst    // many of them
	Collect  int       // remove that many by GC
	Gone     int       // remove that many by the command, after their namespaces are gone
	Command  int       // attach that many by the command, and measure what looks at them
	Path     *dataPath // measure through a published port
}

// An answer is what became of an order.
type answer struct {
	Took  map[string]cost   // by verb, and by "verb plugin"; the memory is that of the greatest process
	Fails map[string]string // by verb; a failed CHECK ends nothing
	Rush  *rush
	Left  int // leases, by GC
	Path  *pathCost
	Error string
}

// work is one side's host: it obeys orders until there are no more.
func work(in io.Reader, out io.Writer) error {
	runtime.LockOSThread() // what it spawns inherits this thread's scheduling
	dec, enc := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var o order
		switch err := dec.Decode(&o); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		a, err := obey(o)
		if err != nil {
			a.Error = err.Error()
		}
		if err := enc.Encode(a); err != nil {
			return err
		}
	}
}

func obey(o order) (a answer, err error) {
	h := host{side: o.Side, dir: o.Dir, watch: o.Watch, c: cases()[o.Case]}
	if h.c.Extra {
		h.c.Plugins = slices.DeleteFunc(h.c.Plugins, func(p map[string]any) bool {
			_, err := os.Stat(filepath.Join(o.Dir, p["type"].(string)))
			return errors.Is(err, fs.ErrNotExist)
		})
	}
	switch o.Side {
	case chained:
		h.c = h.c.inChain()
	case floored:
		h.parts = strings.Join(h.c.parts(), " ")
		h.c.Plugins = []map[string]any{{"type": "floor"}}
	}
	switch {
	case o.Populate != nil:
		return a, calmly(func() error { return h.populate(*o.Populate, o.From) })
	case o.Burst != nil:
		err = calmly(func() (err error) {
			r, err := h.burst(*o.Burst)
			a.Rush = &r
			return err
		})
		return a, err
	case o.Collect > 0:
		return h.collect(o.Collect)
	case o.Gone > 0:
		return h.collectGone(o.Gone)
	case o.Command > 0:
		return h.command(o.Command)
	case o.Path != nil:
		p, err := h.path(*o.Path)
		return answer{Path: &p}, err
	}
	return h.measure(o.Measure)
}

// calmly runs f without real-time scheduling: it is not measured, and the machine has other work too.
func calmly(f func() error) (err error) {
	was, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return err
	}
	if was.Policy != unix.SCHED_NORMAL {
		if err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL},
			0); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, unix.SchedSetAttr(0, was, 0)) }()
	}
	return f()
}

// A host runs chains of plugins as a runtime would.
type host struct {
	side, dir string
	c         benchCase
	parts     string // of the floor
	watch     bool
}

// run runs one plugin of the chain, and says what its process cost.
func (h host) run(verb string, i int, a attachment, prev json.RawMessage) (json.RawMessage, cost, error) {
	conf, err := h.c.conf(i, a.number, prev)
	if err != nil {
		return nil, cost{}, err
	}
	args := ""
	if h.parts != "" {
		args = fmt.Sprint(a.number, " ", h.parts)
	}
	out, c, err := spawn(filepath.Join(h.dir, h.c.Plugins[i]["type"].(string)), []string{
		"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + a.id, "CNI_NETNS=" + a.netns, "CNI_IFNAME=" + a.ifName,
		"CNI_PATH=" + h.dir, "CNI_ARGS=" + args,
	}, conf, h.watch)
	if err != nil {
		err = fmt.Errorf("%s: %w", verb, err)
	}
	return out, c, err
}

type attachment struct {
	number            int
	id, netns, ifName string
}

// add runs the chain in order, and adds what each of it took.
func (h host) add(a attachment, ans *answer) (result json.RawMessage, err error) {
	for i := range h.c.Plugins {
		var c cost
		if result, c, err = h.run("ADD", i, a, result); err != nil {
			return nil, err
		}
		ans.count(h, "ADD", i, c)
	}
	return result, nil
}

// count adds what the i-th plugin cost for a verb.
func (a *answer) count(h host, verb string, i int, c cost) {
	keys := []string{verb}
	if len(h.c.Plugins) > 1 {
		keys = append(keys, verb+" "+h.c.Plugins[i]["type"].(string))
	}
	for _, k := range keys {
		a.Took[k] = cost{Time: a.Took[k].Time + c.Time, Memory: max(a.Took[k].Memory, c.Memory)}
	}
}

// measure attaches, checks and detaches one container in a namespace of its own.
func (h host) measure(number int) (ans answer, err error) {
	a := attachment{number, fmt.Sprintf("measured-%d", number), fmt.Sprintf("/run/netns/m%d", number), "eth0"}
	if err := nstest.MakeNS(a.netns); err != nil {
		return ans, err
	}
	ans = answer{Took: map[string]cost{}, Fails: map[string]string{}}
	result, err := h.add(a, &ans)
	if err != nil {
		return ans, err
	}
	for i := range h.c.Plugins {
		if h.side == floored {
			break // there is no least that a CHECK asks for
		}
		_, c, err := h.run("CHECK", i, a, result)
		if err != nil {
			ans.Fails["CHECK"] = err.Error()
		}
		ans.count(h, "CHECK", i, c)
	}
	for i := len(h.c.Plugins) - 1; i >= 0; i-- {
		_, c, err := h.run("DEL", i, a, result)
		if err != nil {
			return ans, err
		}
		ans.count(h, "DEL", i, c)
	}
	// The namespace stays until the host goes: its end would run beside the next measurement.
	return ans, nil
}

// perNS is how many of the attachments that are only there to be many share a namespace.
const perNS = 50

// present is the n-th of these, in a namespace that its first one makes.
func (h host) present(n int) (attachment, error) {
	per := perNS
	if h.c.Exclusive {
		per = 1
	}
	a := attachment{1000 + n, fmt.Sprintf("present-%d", n), fmt.Sprintf("/run/netns/p%d", n/per),
		fmt.Sprintf("eth%d", n%per)}
	if n%per == 0 {
		return a, nstest.MakeNS(a.netns)
	}
	return a, nil
}

// populate adds to what is there until it is l.
func (h host) populate(l load, from int) error {
	prepare := h.c.Host
	if h.side == floored {
		prepare = floorHost
	}
	if prepare != "" && from < 0 {
		if out, err := exec.Command("sh", "-ec", prepare).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", prepare, err, out)
		}
	}
	alias := func(p map[string]any) bool { return p["type"] == "alias" }
	if h.c.Names && from < 0 && slices.ContainsFunc(h.c.Plugins, alias) {
		if err := h.serveNames(); err != nil {
			return err
		}
	}
	if from = max(from, 0); l.Of == "leases" {
		return h.leases(l.Count, from)
	}
	if h.c.Single {
		return nil
	}
	var pattern *pattern
	for n := from; n < l.Count; n++ {
		a, err := h.present(n)
		if err != nil {
			return err
		}
		switch {
		case h.side == reference && h.c.Ports && n == from+1 && l.Count-from > cloneFrom:
			pattern, err = h.learn(a)
		case pattern != nil:
			err = pattern.attach(h, a)
		default:
			_, err = h.add(a, &answer{Took: map[string]cost{}})
		}
		if err != nil {
			return err
		}
	}
	return pattern.restore()
}

// leases writes leases as host-local does: a file for each, and the cursor at the last.
func (h host) leases(n, from int) error {
	if n == 0 || h.side == floored {
		return nil
	}
	dir := "/var/lib/cni/networks/bench"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	ip := ""
	for i := from; i < n; i++ {
		ip = fmt.Sprintf("%s.%d.%d", h.c.Subnet, (i+2)>>8, (i+2)&0xff)
		content := fmt.Sprintf("present-%d\r\neth0", i)
		if err := os.WriteFile(filepath.Join(dir, ip), []byte(content), 0o600); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, "last_reserved_ip.0"), []byte(ip), 0o600)
}

// first is s on one line, cut to what a table can hold.
func first(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > 300 {
		s = s[:300] + "…"
	}
	return s
}
