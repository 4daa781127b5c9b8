package xtables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Apply makes all these changes, or none. Lines are input of iptables-restore, without the table's name and COMMIT. A
// line ":CHAIN -" creates a chain, or empties an existing one. "-N CHAIN" fails if the chain exists.
func (t *Table) Apply(ctx context.Context, lines ...string) error {
	if len(lines) == 0 {
		return nil
	}
	if err := fence(ctx); err != nil {
		return err
	}
	return t.restore(ctx, lines)
}

func (t *Table) restore(ctx context.Context, lines []string, args ...string) error {
	in := "*" + t.Table + "\n" + strings.Join(lines, "\n") + "\nCOMMIT\n"
	_, err := t.run(ctx, in, "restore", append(args, "--noflush")...)
	return err
}

// Missing returns those of the rules that the table does not have. It changes nothing.
func (t *Table) Missing(ctx context.Context, rules ...Rule) (missing []Rule, err error) {
	chains := map[string]bool{}
	for _, r := range rules {
		chains[r.Chain] = false
	}
	for name := range chains {
		there, err := t.Chains(name)
		if err != nil {
			return nil, err
		}
		chains[name] = there[0]
	}
	var left []Rule
	for _, r := range rules {
		if chains[r.Chain] {
			left = append(left, r)
		} else {
			missing = append(missing, r)
		}
	}
	for len(left) > 0 {
		// A line that fails ends it, so those before it are there, and those after it are asked again.
		lines := make([]string, len(left))
		for i, r := range left {
			lines[i] = r.line("-C")
		}
		var args []string
		if t.Variant == Legacy { // nft looks at nothing when it is told to test
			args = []string{"--test"}
		}
		err := t.restore(ctx, lines, args...)
		if err == nil {
			break
		}
		var failed *Error
		if !errors.As(err, &failed) || failed.Line < 2 || failed.Line-2 >= len(left) {
			return nil, err
		}
		missing = append(missing, left[failed.Line-2])
		left = left[failed.Line-1:]
	}
	return missing, nil
}

// An Error is the failure of an iptables program. Line is the number of the input line, from 1 on, or 0 if it is not
// known.
type Error struct {
	Program, Says string
	Line          int
	Err           error
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %v: %s", e.Program, e.Err, e.Says) }

func (e *Error) Unwrap() error { return e.Err }

// Misuse reports whether the program could not parse a line, rather than that the kernel refused it.
func (e *Error) Misuse() bool {
	var exit interface{ ExitCode() int }
	return errors.As(e.Err, &exit) && exit.ExitCode() == 2
}

// lookPath finds a program in PATH, or where distributions have it: a container runtime's PATH may lack sbin.
func lookPath(name string) (string, bool) {
	for _, dir := range append(filepath.SplitList(os.Getenv("PATH")), "/usr/sbin", "/sbin") {
		if !filepath.IsAbs(dir) {
			continue
		}
		path := filepath.Join(dir, name)
		if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() && unix.Access(path, unix.X_OK) == nil {
			return path, true
		}
	}
	return "", false
}

func notInstalled(name string) error { return fmt.Errorf("%s: not installed (package iptables)", name) }

// plainVariant is the variant that "iptables" is on this host.
func plainVariant(v6 bool) (Variant, error) {
	name := "iptables"
	if v6 {
		name = "ip6tables"
	}
	path, ok := lookPath(name)
	if !ok {
		for _, v := range []Variant{NFT, Legacy} {
			t := &Table{Variant: v, V6: v6}
			if _, ok := lookPath(t.command("restore")); ok {
				return v, nil
			}
		}
		return 0, notInstalled(name)
	}
	return variantOf(path), nil
}

// variantOf tells by what a program's links lead to, or else by what it says of itself: "(nf_tables)" since
// there are two.
func variantOf(path string) Variant {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		switch base := filepath.Base(real); {
		case strings.Contains(base, "nft"):
			return NFT
		case strings.Contains(base, "legacy"):
			return Legacy
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), versionBound)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.WaitDelay = time.Second // for what it started itself
	if out, err := cmd.Output(); err == nil && bytes.Contains(out, []byte("nf_tables")) {
		return NFT
	}
	return Legacy
}

// versionBound is how long a program may take to say what it is.
const versionBound = 2 * time.Second

// program is the command line of the variant's restore or save.
func (t *Table) program(what string) ([]string, error) {
	plain := strings.Replace(t.command(what), "-"+t.Variant.String(), "", 1)
	if path, ok := lookPath(t.command(what)); ok {
		return []string{path}, nil
	}
	if path, ok := lookPath("xtables-" + t.Variant.String() + "-multi"); ok {
		return []string{path, plain}, nil
	}
	if path, ok := lookPath(plain); ok && variantOf(path) == t.Variant {
		return []string{path}, nil
	}
	return nil, notInstalled(t.command(what))
}

// Installed returns nil if the programs of the variant are installed.
func (t *Table) Installed() error {
	_, err := t.program("restore")
	return err
}

// lockWait bounds what a program waits for others that change tables.
const lockWait = 10 * time.Second

// run executes a program of the variant inside the namespace.
func (t *Table) run(ctx context.Context, in, what string, args ...string) (string, error) {
	argv, err := t.program(what)
	if err != nil {
		return "", err
	}
	wait := lockWait
	if end, ok := ctx.Deadline(); ok {
		wait = max(min(wait, time.Until(end)), time.Second)
	}
	if what == "restore" {
		args = append(args, "-w", strconv.Itoa(int(wait.Seconds())))
	}
	ctx, cancel := context.WithTimeout(ctx, 3*lockWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], append(argv[1:], args...)...)
	cmd.WaitDelay = time.Second
	cmd.Stdin = strings.NewReader(in)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	// A program that outlives this one would change the tables after a DEL has cleaned up. The signal is that of
	// the thread's death, which therefore stays.
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err = t.ns.Do(cmd.Start); err == nil { // a child is where its thread is
		err = cmd.Wait()
	}
	if err == nil {
		return out.String(), nil
	}
	says := strings.Join(strings.Fields(stderr.String()), " ")
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case errors.As(err, &exit) && exit.ExitCode() == 4 && strings.Contains(says, "xtables lock"):
		err = unix.EBUSY
	}
	return "", &Error{Program: t.command(what), Says: says, Line: failedLine(says), Err: err}
}

// failedLine is N in "line N failed".
func failedLine(says string) int {
	_, rest, _ := strings.Cut(says, "line ")
	number, _, ok := strings.Cut(rest, " failed")
	n, err := strconv.Atoi(number)
	if !ok || err != nil {
		return 0
	}
	return n
}
