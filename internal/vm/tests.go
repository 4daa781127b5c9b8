package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// stepMark begins the line that says whose output follows.
const stepMark = "=== PACKAGE "

// Package nstest's Skipped, Machine and Program.
const (
	skippedVar = "FAIRLEAD_SKIPPED"
	machineVar = "FAIRLEAD_MACHINE"
	programVar = "FAIRLEAD_PROGRAM"
)

// kinds.txt is what the kernel must have, and how that is tried; skips.txt the tests that may skip.
var (
	//go:embed kinds.txt
	kindsList string
	//go:embed skips.txt
	skipsList string
)

// A kind is something that not every kernel has.
type kind struct{ Name, Command string }

// entries are the lines of a list, a word and the rest, without comments.
func entries(list string) (all [][2]string) {
	for line := range strings.Lines(list) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), "#")
		if word, rest, _ := strings.Cut(strings.TrimSpace(line), " "); word != "" {
			all = append(all, [2]string{word, strings.TrimSpace(rest)})
		}
	}
	return all
}

func kinds() (all []kind) {
	for _, e := range entries(kindsList) {
		all = append(all, kind{e[0], e[1]})
	}
	return all
}

// everything are the modules that tests may need and that are not loaded on demand.
func everything() []string {
	return strings.Fields(`crc32c_generic virtio_net e1000 veth bridge br_netfilter macvlan macvtap ipvlan 8021q dummy vrf
		vxlan geneve wireguard tun tap ifb bonding openvswitch nf_tables nft_chain_nat nft_masq nft_nat nft_ct nft_compat nft_fib_inet
		nft_reject_inet nft_limit nft_log ip_tables ip6_tables iptable_nat iptable_filter ip6table_nat ip6table_filter
		xt_MASQUERADE xt_comment xt_addrtype xt_mark xt_conntrack xt_multiport xt_nat nf_conntrack_netlink nf_conntrack_bridge
		sch_tbf sch_htb sch_ingress sch_netem cls_u32 act_mirred sctp netkit overlay`)
}

// runTests builds the packages' tests and runs them in the machine.
func runTests(ctx context.Context, o options, share string, packages []string) (status int, err error) {
	only := map[string]string{}
	switch {
	case o.from != "" && (o.run != "" || len(packages) > 0):
		return 0, errors.New("-from says what to run: no packages and no -run beside it")
	case o.from != "":
		if only, err = o.missed(); err != nil {
			return 0, err
		}
		if len(only) == 0 {
			fmt.Println("no test skipped outside for want of anything: the machine has nothing to do")
			return 0, nil
		}
		packages = slices.Sorted(maps.Keys(only))
	case len(packages) == 0:
		packages = []string{"./..."}
	}
	if why := cannot(o); why != "" {
		return skippedStatus(why), nil
	}
	j := job{Env: append(os.Environ(), "CI=true", skippedVar+"=", machineVar+"=true"), Kinds: kinds()}
	if o.foreign() {
		if err := goBuild(ctx, o, "build", "-o", filepath.Join(share, "fairlead"), "./cmd/fairlead"); err != nil {
			return 0, err
		}
		j.Env = append(j.Env, programVar+"=/share/fairlead")
	}
	if j.Steps, err = build(ctx, o, share, packages, only); err != nil {
		return 0, err
	}
	started := time.Now()
	var all bytes.Buffer
	out := io.Writer(os.Stdout)
	if !o.verbose {
		out = &filter{to: os.Stdout}
	}
	done, err := boot(ctx, o, share, j, io.MultiWriter(&all, out))
	if err != nil {
		return 0, err
	}
	if f, ok := out.(*filter); ok {
		f.flush()
	}
	for _, l := range done.Lacks {
		fmt.Println("the kernel lacks", l)
		status = 1
	}
	seen := tally(all.Bytes())
	if printSkipped(seen.skipped) {
		status = 1
	}
	if printFailed(j.Steps, done.Status) {
		status = 1
	}
	fmt.Printf("Linux %s: %d tests passed, %d skipped, %d failed, in %v (%.0f s before the first)\n", done.Release,
		seen.passed, len(seen.skipped), seen.failed, time.Since(started).Round(time.Second), done.Ready)
	if seen.passed == 0 {
		return 0, errors.New("no test ran")
	}
	return status, nil
}

// skippedStatus says why no machine runs, and is the exit status: in CI it is a failure.
func skippedStatus(why string) int {
	fmt.Println("SKIPPED, no virtual machine here:", why)
	if os.Getenv("CI") != "" {
		return 1
	}
	return 0
}

// printFailed prints which steps failed, and reports whether one did.
func printFailed(steps []step, status []int) (found bool) {
	for i, s := range steps {
		if status[i] != 0 {
			fmt.Printf("FAIL %s: status %d\n", s.Name, status[i])
			found = true
		}
	}
	return found
}

// printSkipped prints which tests were skipped that must not be, and reports whether one was.
func printSkipped(skipped []skip) (found bool) {
	may := entries(skipsList)
	for _, s := range skipped {
		if !slices.ContainsFunc(may, func(e [2]string) bool { return e[0] == s.test }) {
			fmt.Printf("must not skip here: %s %s: %s\n", s.pkg, s.test, s.why)
			found = true
		}
	}
	return found
}

// cannot is why there can be no machine.
func cannot(o options) string {
	m, ok := models()[o.arch]
	if !ok {
		return "no machine is known for " + o.arch
	}
	if _, err := exec.LookPath(m.emulator); err != nil {
		return m.pkg + " is not installed"
	}
	if _, _, _, err := newest(o); err != nil {
		return err.Error()
	}
	return ""
}

// missed reads the tests that skipped outside, and returns what runs those of this part, by package.
func (o options) missed() (only map[string]string, err error) {
	tests, err := readLines(o.from)
	if err != nil {
		return nil, fmt.Errorf("the tests that skipped: %w", err)
	}
	if o.part == "" || len(tests) == 0 {
		return patterns(tests)
	}

	part, err := parseRotation(o.part)
	if err != nil {
		return nil, err
	}
	always, err := readLines(o.always)
	if err != nil {
		return nil, err
	}
	chosen, err := part.choose(tests, always)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.always, err)
	}
	fmt.Printf("part %d of %d: %d of the %d tests that skipped outside\n", part.Part, part.Parts, len(chosen),
		len(tests))
	return patterns(chosen)
}

// patterns returns the expression for -test.run that matches the tests, by package.
func patterns(tests []string) (only map[string]string, err error) {
	only = map[string]string{}
	for _, test := range tests {
		pkg, name, ok := strings.Cut(test, " ")
		if !ok {
			return nil, fmt.Errorf("the tests that skipped: %q is no package and test", test)
		}
		var re []string
		for part := range strings.SplitSeq(name, "/") {
			re = append(re, "^"+regexp.QuoteMeta(part)+"$")
		}
		if only[pkg] != "" {
			only[pkg] += "|"
		}
		only[pkg] += strings.Join(re, "/")
	}
	return only, nil
}

// build makes a step of each package that has tests.
func build(ctx context.Context, o options, share string, packages []string,
	only map[string]string) (steps []step, err error) {
	byModule := map[string][]string{}
	for _, p := range packages {
		byModule[moduleOf(p)] = append(byModule[moduleOf(p)], p)
	}
	for _, module := range slices.Sorted(maps.Keys(byModule)) {
		some, err := buildModule(ctx, o, share, module, byModule[module], only)
		if err != nil {
			return nil, err
		}
		steps = append(steps, some...)
	}
	return steps, nil
}

// moduleOf is the directory of the module that has a package: tests that need modules which no user of the packages
// needs are in one of their own.
func moduleOf(pkg string) string {
	for _, module := range []string{"internal/tools", "cluster"} {
		if strings.HasPrefix(pkg, "github.com/fairlead-cni/fairlead/"+module+"/") {
			return module
		}
	}
	return "."
}

func buildModule(ctx context.Context, o options, share, module string, packages []string,
	only map[string]string) (steps []step, err error) {
	list := exec.CommandContext(ctx, "go", append([]string{"list", "-C", module, "-f",
		"{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}"}, packages...)...)
	list.Stderr = os.Stderr
	b, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		path, dir, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			continue
		}
		name := strings.ReplaceAll(path, "/", "_") + ".test"
		if err := goBuild(ctx, o, "test", "-C", module, "-c", "-o", filepath.Join(share, name), path); err != nil {
			return nil, err
		}
		s := step{Name: path, Dir: dir, Args: []string{"/share/" + name, "-test.v", "-test.timeout",
			o.timeout.String()}}
		if run := cmp.Or(only[path], o.run); run != "" {
			s.Args = append(s.Args, "-test.run", run)
		}
		steps = append(steps, s)
	}
	return steps, nil
}

type skip struct{ pkg, test, why string }

type counts struct {
	passed, failed int
	skipped        []skip
}

// tally reads what tests print with -test.v. The reason of a skip stands in the lines after it begins.
func tally(out []byte) (c counts) {
	pkg, last := "", ""
	s := bufio.NewScanner(bytes.NewReader(out))
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		line := strings.TrimSpace(s.Text())
		if name, ok := strings.CutPrefix(line, stepMark); ok {
			pkg = name
		}
		test := func(verdict string) (string, bool) {
			rest, ok := strings.CutPrefix(line, "--- "+verdict+": ")
			name, _, _ := strings.Cut(rest, " ")
			return name, ok
		}
		if _, ok := test("PASS"); ok {
			c.passed++
		} else if _, ok := test("FAIL"); ok {
			c.failed++
		} else if name, ok := test("SKIP"); ok {
			c.skipped = append(c.skipped, skip{pkg, name, last})
		}
		last = line
	}
	return c
}

// A filter prints packages and failures, and holds back what passing tests print.
type filter struct {
	to   io.Writer
	rest []byte
	held []string
}

func (f *filter) Write(b []byte) (int, error) {
	f.rest = append(f.rest, b...)
	for {
		i := bytes.IndexByte(f.rest, '\n')
		if i < 0 {
			return len(b), nil
		}
		f.line(string(f.rest[:i]))
		f.rest = f.rest[i+1:]
	}
}

func (f *filter) line(line string) {
	switch text := strings.TrimSpace(line); {
	case strings.HasPrefix(text, stepMark), strings.HasPrefix(text, "panic:"), strings.HasPrefix(text, "FAIL"):
		f.flush()
		fmt.Fprintln(f.to, line)
	case strings.HasPrefix(text, "=== RUN") && !strings.Contains(text, "/"), text == "PASS":
		f.held = f.held[:0]
	case strings.HasPrefix(line, "--- FAIL"):
		f.held = append(f.held, line)
		f.flush()
	default:
		f.held = append(f.held, line)
	}
}

// flush prints what was held back: it belongs to something that failed.
func (f *filter) flush() {
	for _, l := range f.held {
		fmt.Fprintln(f.to, l)
	}
	f.held = nil
}
