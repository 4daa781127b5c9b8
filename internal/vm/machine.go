package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// A job is what the machine is booted for. It travels in the shared directory, as job.json.
type job struct {
	Env     []string
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
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		return done, fmt.Errorf("%w: install qemu-system-x86", err)
	}
	version, image, modules, err := newest(o.kernel)
	if err != nil {
		return done, err
	}
	if image, err = unpack(image, share); err != nil {
		return done, fmt.Errorf("unpack the kernel: %w", err)
	}
	if dir := filepath.Dir(modules); dir != "/lib/modules" {
		j.Modules = dir
	}
	initrd := filepath.Join(share, "initrd")
	if j.Load, err = writeInitrd(initrd, modules); err != nil {
		return done, fmt.Errorf("initial root for %s: %w", version, err)
	}
	b, err := json.Marshal(j)
	if err != nil {
		return done, err
	}
	if err := os.WriteFile(filepath.Join(share, "job.json"), b, 0o600); err != nil {
		return done, err
	}
	console := filepath.Join(share, "console")
	cmd := exec.CommandContext(ctx, qemu, machineArgs(o, share, image, initrd, console)...)
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

func machineArgs(o options, share, image, initrd, console string) []string {
	processor := []string{"-accel", o.accel, "-cpu", "host"}
	if o.accel == "tcg" {
		processor = []string{"-accel", "tcg,thread=multi", "-cpu", "max"}
	}
	args := append(processor,
		"-machine", "pc", "-smp", fmt.Sprint(o.cpus), "-m", fmt.Sprint(o.memory),
		"-display", "none", "-monitor", "none", "-nodefaults", "-no-reboot",
		"-serial", "stdio", "-serial", "file:"+console,
		"-kernel", image, "-initrd", initrd,
		"-append", "console=ttyS1 loglevel=4 panic=-1 net.ifnames=0 tsc=unstable mitigations=off nokaslr no_timer_check cryptomgr.notests audit=0 random.trust_cpu=on rdinit=/init",
		"-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap",
		"-virtfs", "local,path="+share+",mount_tag=share,security_model=none",
	)
	for i := range 2 { // each on a hub of its own: a link that is up, and nobody there
		args = append(args, "-netdev", fmt.Sprintf("hubport,id=n%d,hubid=%d", i, i),
			"-netdev", fmt.Sprintf("hubport,id=end%d,hubid=%d", i, i), // without a second port nothing leaves the card's queue
			"-device", fmt.Sprintf("%s,netdev=n%d,mac=52:54:00:00:00:0%d,addr=0x%d", o.nic, i, i, 10+i))
	}
	return args
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
