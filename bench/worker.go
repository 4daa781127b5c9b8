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
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// An order is what the driver asks of a worker; the first one says the plugins and the case.
type order struct {
	Dir      string
	Case     int
	Populate *load
	Measure  int    // the number of the container to attach, check and detach; 0: none
	Burst    *burst // many of them
}

// An answer is what became of an order.
type answer struct {
	Took  map[string]time.Duration // by verb, and by "verb plugin"
	Fails map[string]string        // by verb; a failed CHECK ends nothing
	Rush  *rush
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

func obey(o order) (answer, error) {
	h := host{dir: o.Dir, c: cases()[o.Case]}
	if h.c.Extra {
		h.c.Plugins = slices.DeleteFunc(h.c.Plugins, func(p map[string]any) bool {
			_, err := os.Stat(filepath.Join(o.Dir, p["type"].(string)))
			return errors.Is(err, fs.ErrNotExist)
		})
	}
	if _, err := os.Stat(filepath.Join(o.Dir, "chain")); err == nil && h.c.Chained {
		h.c = h.c.inChain()
	}
	if o.Populate != nil {
		return answer{}, calmly(func() error { return h.populate(*o.Populate) })
	}
	if o.Burst != nil {
		var r rush
		err := calmly(func() (err error) {
			r, err = h.burst(*o.Burst)
			return err
		})
		return answer{Rush: &r}, err
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
		if err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL}, 0); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, unix.SchedSetAttr(0, was, 0)) }()
	}
	return f()
}

// A host runs chains of plugins as a runtime would.
type host struct {
	dir string
	c   benchCase
}

// run runs one plugin of the chain, and says how long its process took.
func (h host) run(verb string, i int, a attachment, prev json.RawMessage) (json.RawMessage, time.Duration, error) {
	conf, err := h.c.conf(i, a.number, prev)
	if err != nil {
		return nil, 0, err
	}
	out, took, err := spawn(filepath.Join(h.dir, h.c.Plugins[i]["type"].(string)), []string{
		"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + a.id, "CNI_NETNS=" + a.netns, "CNI_IFNAME=" + a.ifName,
		"CNI_PATH=" + h.dir, "CNI_ARGS=",
	}, conf)
	if err != nil {
		err = fmt.Errorf("%s: %w", verb, err)
	}
	return out, took, err
}

type attachment struct {
	number            int
	id, netns, ifName string
}

// add runs the chain in order, and adds what each of it took.
func (h host) add(a attachment, ans *answer) (result json.RawMessage, err error) {
	for i := range h.c.Plugins {
		var d time.Duration
		if result, d, err = h.run("ADD", i, a, result); err != nil {
			return nil, err
		}
		h.count(ans, "ADD", i, d)
	}
	return result, nil
}

// count adds what the i-th plugin took for a verb.
func (h host) count(ans *answer, verb string, i int, d time.Duration) {
	ans.Took[verb] += d
	if len(h.c.Plugins) > 1 {
		ans.Took[verb+" "+h.c.Plugins[i]["type"].(string)] += d
	}
}

// measure attaches, checks and detaches one container in a namespace of its own.
func (h host) measure(number int) (ans answer, err error) {
	a := attachment{number, fmt.Sprintf("measured-%d", number), fmt.Sprintf("/run/netns/m%d", number), "eth0"}
	if err := nstest.MakeNS(a.netns); err != nil {
		return ans, err
	}
	ans = answer{Took: map[string]time.Duration{}, Fails: map[string]string{}}
	result, err := h.add(a, &ans)
	if err != nil {
		return ans, err
	}
	for i := range h.c.Plugins {
		_, d, err := h.run("CHECK", i, a, result)
		if err != nil {
			ans.Fails["CHECK"] = err.Error()
		}
		h.count(&ans, "CHECK", i, d)
	}
	for i := len(h.c.Plugins) - 1; i >= 0; i-- {
		_, d, err := h.run("DEL", i, a, result)
		if err != nil {
			return ans, err
		}
		h.count(&ans, "DEL", i, d)
	}
	// The namespace stays until the host goes: its end would run beside the next measurement.
	return ans, nil
}

// perNS is how many of the attachments that are only there to be many share a namespace.
const perNS = 50

func (h host) populate(l load) error {
	if h.c.Host != "" {
		if out, err := exec.Command("sh", "-ec", h.c.Host).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", h.c.Host, err, out)
		}
	}
	if l.Of == "leases" {
		return h.leases(l.Count)
	}
	if h.c.Single {
		return nil
	}
	per := perNS
	if h.c.Alone {
		per = 1
	}
	for n := range l.Count {
		ns := fmt.Sprintf("/run/netns/p%d", n/per)
		if n%per == 0 {
			if err := nstest.MakeNS(ns); err != nil {
				return err
			}
		}
		a := attachment{1000 + n, fmt.Sprintf("present-%d", n), ns, fmt.Sprintf("eth%d", n%per)}
		if _, err := h.add(a, &answer{Took: map[string]time.Duration{}}); err != nil {
			return err
		}
	}
	return nil
}

// leases writes leases as host-local does: a file for each, and the cursor at the last.
func (h host) leases(n int) error {
	if n == 0 {
		return nil
	}
	dir := "/var/lib/cni/networks/bench"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	ip := ""
	for i := range n {
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
