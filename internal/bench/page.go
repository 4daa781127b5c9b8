package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The page has three sections, of what was measured here, here with the newest reference, and in the virtual machine.
// Each is written by a run of its own.
const (
	here    = "here"
	newest  = "with the newest reference"
	virtual = "in the virtual machine"
)

const intro = `# Performance, side by side with the reference

` + "`make bench`, `make bench-newest`" + ` and ` + "`make bench-vm`" + ` wrote this page. It shows the measurement of one day on one machine, and is not a test. Read the
ratios. Each section names the version of the reference and the version or commit of ours that it measured.

- The same code runs all sides, as whole processes, in turn. Each side has a throw-away host of its own, and each container a fresh network
  namespace.
- A time is the sum over the plugins of the list, from the start of a process to its end: median [least..most].
- The first round makes the bridge, the chains and the indexes, and is not counted.
- State is on a tmpfs.
- "Ours in one chain" is the same list in one plugin [chain](plugins/chain.md).
- "Floor" is a program of one process (bench/floor). It makes only the kernel requests that the work needs. It reads no
  configuration, asks nothing, and checks nothing.
- If more than 20 containers of the reference with iptables rules are present, the reference's plugins attach two of them. For the
  others they attach only the bridge part; their rules are copies of those of the second container.

`

// growing explains the one cost that grows with the attachments on our side.
const growing = `A bridge of 1,000 ports costs both sides time in the kernel:

- Adding a port takes 1.1 ms with few ports and 2.2 ms with 1,000. br_add_if calls br_port_state_selection and
  netdev_master_upper_dev_link, which walk all ports.
- IPv6 in the container sends packets when its link comes up.
- With the reference, each new address is announced to the neighbours: 0.3 ms and 2.8 ms (br_flood, arp_process). The kernel copies the
  announcement to every port, and receives it there, in the sender's time.

Fairlead announces an address only if a neighbour may know another owner of it. host-local's leases and a record of each bridge
(in /run/cni/fairlead/history) prove which addresses no container has had since the boot. Fairlead always announces in these cases:

- The address comes from another allocator, was requested by name, or was used before.
- The bridge has a port that Fairlead does not know, or Fairlead did not make the bridge.
- Another program may have changed the leases.

With Fairlead the host-side interfaces have no IPv6. Otherwise each change of a link would walk their routes (fib6_clean_all).

`

const collecting = `This is a GC without any valid attachment. It removes all attachments. Their links exist until then. The command removes
attachments whose namespaces, and so their links, are gone: it calls DEL of each plugin for each attachment. Memory is that
of a second GC, because watching a process takes time. A reference that is not listed has no
GC (CNI 1.1.0).

`

const throughPorts = `A container answers a machine in front of the host at a published port. "Mappings" is how many ports are published in all; the others
come before this one. A new connection looks up the rules. The round trip and the throughput belong to an established connection. A
backend that this reference does not have is not listed.

`

const resident = `The most memory that the largest plugin process of an ADD used, in MiB.

`

// moving explains why host-device cannot be much faster.
const moving = `The kernel moves a device in one request. In it, the kernel waits until everything that was freed before is returned (rcu_barrier):
9 ms and more, 16 in the middle, on the machine above, for every program. Both sides of host-device send this request once for
ADD and once for DEL, and most of their time goes there.

`

const emulated = `# In the virtual machine

Few kernels have these kinds of links. So the measurement runs on Debian's kernel in a virtual machine with an emulated processor. Everything
takes several times as long as on a real one, and computing slows down more than waiting. Read only the ratios.

`

const withNewest = `# With the newest reference plugins

The same measurements beside the newest release of the reference, which was built from its Go module. Lines with "backend nftables" have both
sides configured for nf_tables; in the others the reference uses iptables, its default.

`

func marks(section string) (begin, end string) {
	return "<!-- " + section + " -->\n", "<!-- end: " + section + " -->\n"
}

// writePage writes a run's section of the page at path, and leaves the other as it is there.
func writePage(path string, r report) error {
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for name, svg := range r.plots() {
		if r.Machine.Newest {
			break // the plots are of the first section
		}
		if err := os.WriteFile(filepath.Join(filepath.Dir(path), name), []byte(svg), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(path, page(old, r), 0o644)
}

func page(old []byte, r report) []byte {
	var b bytes.Buffer
	b.WriteString(intro)
	for _, section := range []string{here, newest, virtual} {
		begin, end := marks(section)
		_, text, _ := strings.Cut(string(old), begin)
		text, _, found := strings.Cut(text, end)
		if section == r.Machine.section() {
			text, found = r.markdown(), true
		}
		if found {
			b.WriteString(begin + text + end)
		}
	}
	return b.Bytes()
}

// A pageText is a section of the page that is being written.
type pageText struct {
	strings.Builder
	level string // of its headings
}

// table writes a heading, rows, and what explains them; nothing where there are no rows.
func (b *pageText) table(title string, head []string, rows [][]string, below string) {
	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(b, "%s# %s\n\n| %s |\n|%s\n", b.level, title, strings.Join(head, " | "),
		strings.Repeat("---|", len(head)))
	for _, row := range rows {
		for i := range row {
			row[i] = strings.ReplaceAll(row[i], "|", `\|`)
		}
		fmt.Fprintf(b, "| %s |\n", strings.Join(row, " | "))
	}
	b.WriteString("\n" + below)
}

// sub is table with a smaller heading.
func (b *pageText) sub(title string, head []string, rows [][]string, below string) {
	level := b.level
	b.level += "#"
	b.table(title, head, rows, below)
	b.level = level
}

func (r report) markdown() string {
	b := &pageText{level: "#"}
	switch r.Machine.section() {
	case virtual:
		b.WriteString("#" + emulated)
		b.level = "##"
	case newest:
		b.WriteString("#" + withNewest)
		b.level = "##"
	}
	fmt.Fprintf(b, "%s# Machine\n\n", b.level)
	for _, f := range r.Machine.facts() {
		fmt.Fprintf(b, "- %s: %s\n", f[0], f[1])
	}
	b.WriteByte('\n')
	head, rows := r.startRows()
	b.table("Start of a process", head, rows, "")
	if v := r.verdict(); v != "" {
		b.WriteString(v + "\n\n")
	}
	head, rows = r.rows()
	b.table("ADD, CHECK and DEL", head, rows, "")
	head, rows = r.growth()
	b.sub("As more is present", head, rows, growing)
	if slices.ContainsFunc(r.Lines, func(l line) bool { return strings.HasPrefix(l.Case, "host-device") }) {
		b.WriteString(moving)
	}
	image := func(name, what string) {
		if _, ok := r.plots()[name]; ok && !r.Machine.Newest {
			fmt.Fprintf(b, "![%s](%s)\n\n", what, name)
		}
	}
	image("performance-add.svg", "ADD over the attachments that are present, on a logarithmic scale")
	head, rows = r.burstRows()
	b.sub("Many at once", head, rows, "")
	image("performance-bursts.svg", "Containers attached a second, on a logarithmic scale")
	head, rows = r.expectations()
	b.sub("What the design expected", head, rows, "")
	for _, f := range r.fails() {
		fmt.Fprintf(b, "- %s\n\n", f)
	}
	r.others(b)
	b.WriteString("Configurations are CNI " + cniVersion + ", the newest that Debian 12's reference speaks; GC's are " +
		gcVersion)
	if !r.Machine.Virtual {
		b.WriteString("; the port\nmappings are one of tcp and one of udp")
	}
	b.WriteString(".\n")
	return b.String()
}

// others are the tables of what is not ADD, CHECK and DEL.
func (r report) others(b *pageText) {
	head, rows := r.gcRows()
	b.table("GC", head, rows, collecting)
	head, rows = r.pathRows()
	b.table("The data path", head, rows, throughPorts)
	head, rows = r.commandRows()
	b.table("Commands that look at a host", head, rows, "")
	head, rows = r.memoryRows()
	b.table("Memory", head, rows, resident)
}
