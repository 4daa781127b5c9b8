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

// The page has two sections, of what was measured here and in the virtual machine. Each is written by a run of its own.
const (
	here    = "here"
	virtual = "in the virtual machine"
)

func sections() []string { return []string{here, virtual} }

const intro = `# Performance, side by side with the reference

Written by ` + "`make bench`" + ` and ` + "`make bench-vm`" + `; a measurement of one day on one machine, and no test. Read the ratios:
all sides are run by the same code, as whole processes, in turn, each in a throw-away host of its own, with a fresh
network namespace for each container. A time is the sum over the plugins of the chain, from the start of a process to
its end: median [least..most]. One round that makes the bridge, the chains and the indexes comes first and is not
counted. State lies on a tmpfs.

"Ours in one chain" is the same list in one plugin [chain](plugins/chain.md). The floor is a program of one process
(bench/floor) that does the least that the kernel asks for the same work: it reads no configuration, asks no question,
and checks nothing. Where more than 20 containers of the reference's are present that have rules of iptables, the
reference's plugins attach two of them, and the bridge's part of the others; the rules of these are copies of what the
second one added.

`

// growing explains the one cost that grows with the attachments on our side.
const growing = `A bridge of 1,000 ports costs both sides in the kernel: plugging a port in (1.1 ms at few ports, 2.2 at 1,000: br_add_if,
where br_port_state_selection and netdev_master_upper_dev_link walk all ports), what IPv6 in the container sends by itself when its
link comes up, and, with the reference, telling the neighbours of a new address, which is copied to every port, and there received, in
the sender's time (0.3 ms and 2.8 ms: br_flood, arp_process). We tell only where somebody on the bridge may know another owner of the
address: host-local's ledger and a record of each bridge (in /run/cni/fairlead/history) prove where nobody has held it since the boot.
An address of another allocator, one that was asked for by name, one that was held before, a port that is not ours, a bridge that we did
not make, and leases that another program may have changed: all these are told of as ever. The ports' host-side ends have no IPv6
with us, or each change of a link would walk their routes (fib6_clean_all).

`

const collecting = `A GC without any valid attachment removes them all; their links stand until then. A reference that is
not listed has no GC (CNI 1.1.0).

`

const throughPorts = `A container answers at a port that the host publishes, to a machine in front of the host. So many
ports are published in all, and the others before it. A new connection asks the rules; the round trip and the stream are
of a connection that stands. A backend that this reference does not have is not listed.

`

const resident = `What the greatest plugin's process of an ADD had in memory at most, in MiB.

`

// moving explains why host-device cannot be much faster.
const moving = `The kernel moves a device in one request, in which it waits for all that was freed before to be given back
(rcu_barrier): 9 ms and more, 16 in the middle, on the machine of the figures above, whoever asks. Both sides of
host-device ask once for ADD and once for DEL, and that is most of their time.

`

const emulated = `# In the virtual machine

What few kernels have is measured with Debian's in a virtual machine, whose processor is emulated: everything takes
several times as long as on a real one, and what computes more than what waits. Read the ratios alone.

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
		if err := os.WriteFile(filepath.Join(filepath.Dir(path), name), []byte(svg), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(path, page(old, r), 0o644)
}

func page(old []byte, r report) []byte {
	var b bytes.Buffer
	b.WriteString(intro)
	for _, section := range sections() {
		begin, end := marks(section)
		_, text, _ := strings.Cut(string(old), begin)
		text, _, found := strings.Cut(text, end)
		if (section == virtual) == r.Machine.Virtual {
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
	fmt.Fprintf(b, "%s# %s\n\n| %s |\n|%s\n", b.level, title, strings.Join(head, " | "), strings.Repeat("---|", len(head)))
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
	if r.Machine.Virtual {
		b.WriteString("#" + emulated)
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
		if _, ok := r.plots()[name]; ok {
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
	head, rows = r.memoryRows()
	b.table("Memory", head, rows, resident)
}
