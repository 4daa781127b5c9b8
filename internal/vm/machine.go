package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A job is what the machine is booted for. It travels in the shared directory, as job.json.
type job struct {
	Env     []string
	Tree    string   // directory to have at the same place; empty: it is there
	Modules string   // directory to have at /lib/modules; empty: it is there
	Load    []string // files of modules, in order
	Kinds   []kind
	Steps   []step
}

// A step is one command.
type step struct {
	Name string // for "test": the package
	Dir  string
	Args []string
}

// An outcome is what became of a job: outcome.json, written before the machine powers off.
type outcome struct {
	Release string
	Ready   float64  // seconds from the kernel's start to the first step
	Lacks   []string // of kinds, with what the kernel said
	Status  []int    // of each step
}

// boot runs a job; what its steps print goes to out.
func boot(ctx context.Context, o options, share string, j job, out io.Writer) (done outcome, err error) {
	qemu, err := exec.LookPath(models()[o.arch].emulator)
	if err != nil {
		return done, fmt.Errorf("%w: install %s", err, models()[o.arch].pkg)
	}
	version, image, modules, err := newest(o)
	if err != nil {
		return done, err
	}
	if image, err = unpack(image, share); err != nil {
		return done, fmt.Errorf("unpack the kernel: %w", err)
	}
	root, init := "/", "/proc/self/exe"
	if o.foreign() {
		if root, err = o.root(); err != nil {
			return done, err
		}
		if j.Tree, err = moduleRoot(ctx); err != nil {
			return done, err
		}
		init = filepath.Join(share, "init")
		if err := goBuild(ctx, o, "build", "-C", j.Tree, "-o", init, "./internal/vm"); err != nil {
			return done, err
		}
	} else if dir := filepath.Dir(modules); dir != "/lib/modules" {
		j.Modules = dir
	}
	initrd := filepath.Join(share, "initrd")
	if j.Load, err = writeInitrd(initrd, init, modules); err != nil {
		return done, fmt.Errorf("initial root for %s: %w", version, err)
	}
	if err := writeJob(share, j); err != nil {
		return done, err
	}
	console := filepath.Join(share, "console")
	args := append(machineArgs(o, image, initrd, console), shared("host", root, ",readonly=on,multidevs=remap")...)
	args = append(args, shared("share", share, "")...)
	if j.Tree != "" {
		args = append(args, shared("tree", j.Tree, ",readonly=on,multidevs=remap")...)
	}
	cmd := exec.CommandContext(ctx, qemu, args...)
	cmd.Stdout = &lines{to: out}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.WaitDelay = 10 * time.Second
	err = cmd.Run()
	if ctx.Err() != nil {
		err = fmt.Errorf("the machine was stopped: %w", context.Cause(ctx))
	}
	b, rerr := os.ReadFile(filepath.Join(share, "outcome.json"))
	if err == nil && rerr == nil {
		err = json.Unmarshal(b, &done)
	}
	if err != nil || rerr != nil {
		said, _ := os.ReadFile(console)
		err = fmt.Errorf("%w\n%s%s", errors.Join(err, rerr), stderr.Bytes(), tail(said, 4000))
	}
	return done, err
}

// writeJob leaves the machine what it has to do.
func writeJob(share string, j job) error {
	b, err := json.Marshal(j)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(share, "job.json"), b, 0o600)
}

// A model is the machine of an architecture.
type model struct {
	emulator, pkg string
	args          []string
	processor     string // what tcg emulates
	console       string // the kernel's words for its first serial line, and what else it is told
	cards         bool   // has a PCI bus with the addresses of the two network cards
}

func models() map[string]model {
	return map[string]model{
		"amd64": {emulator: "qemu-system-x86_64", pkg: "qemu-system-x86", args: []string{"-machine", "pc"},
			processor: "max", cards: true,
			console: "ttyS0 tsc=unstable nokaslr no_timer_check random.trust_cpu=on"},
		"arm64": {emulator: "qemu-system-aarch64", pkg: "qemu-system-arm", args: []string{"-machine", "virt"},
			cards:     true,
			processor: "max,pauth-impdef=on", // signing pointers by the book takes half of the time
			console:   "ttyAMA0 nokaslr random.trust_cpu=on"},
		"s390x": {emulator: "qemu-system-s390x", pkg: "qemu-system-misc", args: []string{"-machine", "s390-ccw-virtio"},
			processor: "max",
			console:   "ttysclp0 random.trust_cpu=on"},
	}
}

func architectures() []string { return slices.Sorted(maps.Keys(models())) }

// shared has qemu show a directory of this machine under a tag.
func shared(tag, path, options string) []string {
	return []string{"-fsdev", "local,id=" + tag + ",path=" + path + ",security_model=none" + options,
		"-device", "virtio-9p,fsdev=" + tag + ",mount_tag=" + tag}
}

// machineArgs has the kernel print to a serial line, and the steps to a virtual console.
func machineArgs(o options, image, initrd, console string) []string {
	m := models()[o.arch]
	processor := []string{"-accel", o.accel, "-cpu", "host"}
	if o.accel == "tcg" {
		processor = []string{"-accel", "tcg,thread=multi", "-cpu", m.processor}
	}
	args := slices.Concat(processor, m.args, []string{
		"-smp", fmt.Sprint(o.cpus), "-m", fmt.Sprint(o.memory),
		"-display", "none", "-monitor", "none", "-nodefaults", "-no-reboot", "-serial", "file:" + console,
		"-chardev", "stdio,id=steps,signal=off", "-device", "virtio-serial,max_ports=1", "-device",
		"virtconsole,chardev=steps",
		"-kernel", image, "-initrd", initrd,
		"-append", "loglevel=4 panic=-1 net.ifnames=0 mitigations=off cryptomgr.notests audit=0 rdinit=/init console=" +
			m.console,
	})
	for i := range 2 { // each on a hub of its own: a link that is up, and no machine there
		if !m.cards {
			break
		}
		args = append(args, "-netdev", fmt.Sprintf("hubport,id=n%d,hubid=%d", i, i),
			// without a second port nothing leaves the card's queue
			"-netdev", fmt.Sprintf("hubport,id=end%d,hubid=%d", i, i),
			"-device", fmt.Sprintf("%s,netdev=n%d,mac=52:54:00:00:00:0%d,addr=0x%d", o.nic, i, i, 10+i))
	}
	return args
}

// moduleRoot is the directory of go.mod.
func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("go list -m: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// goBuild runs the go command for the machine's architecture.
func goBuild(ctx context.Context, o options, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH="+o.arch)
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// lines passes on what a serial line brings, without its carriage returns.
type lines struct{ to io.Writer }

func (l *lines) Write(b []byte) (int, error) {
	_, err := l.to.Write(bytes.ReplaceAll(b, []byte("\r\n"), []byte("\n")))
	return len(b), err
}

func tail(b []byte, n int) []byte {
	if len(b) > n {
		b = b[len(b)-n:]
	}
	return b
}
