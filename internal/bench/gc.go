package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// floorHost is what the floor finds on its host, as the first ADD of plugins makes it for theirs.
const floorHost = `ip link add bench0 type bridge; ip link set bench0 up; ip addr add 10.40.255.254/16 dev bench0
mkdir -p /var/lib/cni/networks/floor
nft -f - <<END
table inet floor {
	map ports { type inet_proto . inet_service : ipv4_addr . inet_service; flags timeout; }
	set masq { type ipv4_addr; flags timeout; }
	set allow { type ipv4_addr; flags timeout; }
	chain publish { type nat hook prerouting priority -100; dnat ip to meta l4proto . th dport map @ports; }
	chain leave { type nat hook postrouting priority 100; ip saddr @masq ip daddr != 10.40.0.0/16 masquerade; }
	chain forward { type filter hook forward priority 0; ip saddr @allow accept; ip daddr @allow accept; }
}
END`

// gcVersion is the first that has GC.
const gcVersion = "1.1.0"

// A gcLine is a GC that removes all attachments of a network, whose links stand.
type gcLine struct {
	Case  string
	Count int
	By    map[string]cost
	Left  map[string]int // leases that a side leaves
}

// collect runs GC with no valid attachment, and counts the leases that are left.
func (h host) collect(count int) (ans answer, err error) {
	ans.Took = map[string]cost{}
	for i, p := range h.c.Plugins {
		conf := map[string]any{"cniVersion": gcVersion, "name": "bench", "cni.dev/valid-attachments": []string{}}
		for k, v := range p {
			conf[k] = v
		}
		stdin, err := json.Marshal(conf)
		if err != nil {
			return ans, err
		}
		first, last := 1000, 1000+count-1
		_, c, err := spawn(filepath.Join(h.dir, p["type"].(string)), []string{"CNI_COMMAND=GC", "CNI_PATH=" + h.dir,
			fmt.Sprint("CNI_CONTAINERID=", first), fmt.Sprint("CNI_ARGS=", last, " ", h.parts)}, stdin, h.watch)
		if err != nil {
			return ans, fmt.Errorf("GC: %w", err)
		}
		ans.count(h, "GC", i, c)
	}
	ans.Left = leasesLeft()
	return ans, nil
}

// measureGC measures a GC of that many attachments of a case, on the sides that have GC: its time, and its memory in a
// second GC, because a process that is watched takes longer.
func measureGC(o options, c benchCase, count int) (l gcLine, err error) {
	l = gcLine{c.Name, count, map[string]cost{}, map[string]int{}}
	for _, name := range append(o.sides(c), command) {
		if name == reference {
			out, _, err := spawn(filepath.Join(o.reference, "bridge"), []string{"CNI_COMMAND=VERSION"}, nil, false)
			if err != nil {
				return l, err
			}
			if !strings.Contains(string(out), `"`+gcVersion+`"`) {
				continue
			}
		}
		a, err := o.collected(name, c, count, false)
		if err != nil {
			return l, err
		}
		watched, err := o.collected(name, c, count, true)
		if err != nil {
			return l, err
		}
		took := a.Took["GC"].Time
		l.By[name], l.Left[name] = cost{Time: took, Memory: watched.Took["GC"].Memory}, a.Left
		took = took.Round(time.Millisecond)
		fmt.Fprintf(os.Stderr, "GC of %d, %s: %v, %d leases left\n", count, name, took, a.Left)
	}
	if len(l.By) == 0 {
		return l, errors.New("GC: no side has it")
	}
	return l, nil
}

// collectGone attaches that many containers as a runtime does, which remembers them, lets their namespaces go, and runs
// the command that removes what they left.
func (h host) collectGone(count int) (ans answer, err error) {
	program := filepath.Join(h.dir, "..", "fairlead")
	plugins := "CNI_PATH=" + h.dir
	err = calmly(func() error {
		if err := h.attachByCommand(count); err != nil {
			return err
		}
		return leave(count)
	})
	if err != nil {
		return ans, err
	}

	ans.Took = map[string]cost{}
	_, ans.Took["GC"], err = spawn(program, []string{plugins}, nil, h.watch, "gc", "bench", "--gone")
	ans.Left = leasesLeft()
	return ans, err
}

// leave removes the namespaces of what attachByCommand has attached.
func leave(count int) error {
	for i := range count {
		if err := nstest.RemoveNS(netnsByCommand(i)); err != nil {
			return err
		}
	}
	return nil
}

// leasesLeft counts the leases of this host.
func leasesLeft() int {
	left, _ := filepath.Glob("/var/lib/cni/networks/*/[1-9]*") // its only error is a wrong pattern
	return len(left)
}

// collected is the answer of a side that removes that many attachments by GC.
func (o options) collected(name string, c benchCase, count int, watch bool) (answer, error) {
	if name == command {
		return o.onOwnHost(name, order{Case: c.number(), Gone: count, Watch: watch})
	}
	return o.onOwnHost(name, order{Case: c.number(), Populate: &load{count, "attachments"}, From: -1},
		order{Case: c.number(), Collect: count, Watch: watch})
}

func (r report) gcRows() (head []string, rows [][]string) {
	head = []string{"side", "attachments", "ms", "MiB", "leases left"}
	for _, l := range r.GC {
		for _, name := range inOrder(keys(l.By)) {
			c := l.By[name]
			rows = append(rows, []string{name, fmt.Sprint(l.Count), ms(c.Time), mebibytes(c.Memory),
				fmt.Sprint(l.Left[name])})
		}
	}
	return head, rows
}

func mebibytes(kibibytes int64) string { return fmt.Sprintf("%.1f", float64(kibibytes)/1024) }
