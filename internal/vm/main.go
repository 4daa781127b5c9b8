// Command vm runs programs as root under a kernel that has everything: a virtual machine that boots Debian's
// kernel with all of its modules and sees this machine's own files, read-only, with a tmpfs laid over them.
//
//	go run ./internal/vm ip link add d0 type dummy
//	go run ./internal/vm test ./kernel ./resource/... ./plugin/...
//	go run ./internal/vm -from FILE test
//	go run ./internal/vm -from FILE -part 17/8 test
//
// With "test" it builds the packages' tests, runs them there, and fails if one of them skips that the list
// skips.txt does not name, or if the kernel lacks something of kinds.txt. FILE has the tests that skipped outside,
// where FAIRLEAD_SKIPPED=FILE was in the environment: all others need no machine, which is several times slower.
// With -part it runs one of several parts of them, and what quick.txt matches; any number of runs will do as NUMBER.
// Where no machine can be had it says so and that is all, but with CI in the environment it fails.
//
// It takes the Debian packages qemu-system-x86 and kmod, and a kernel: linux-image-amd64, installed or, with
// -kernel, unpacked into a directory (dpkg -x).
//
// With -arch the machine is one of another architecture. It cannot run this machine's programs, so its root is a
// directory with Debian's packages for that architecture, kernel included, which `.ci/packages vm ARCH` makes, and
// of this machine's files it sees the module alone.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

type options struct {
	arch    string
	kernel  string
	from    string
	part    string
	always  string
	timeout time.Duration
	memory  int
	cpus    int
	nic     string
	accel   string
	run     string
	verbose bool
}

func main() {
	if os.Getpid() == 1 {
		beInit()
	}
	var o options
	flag.StringVar(&o.arch, "arch", runtime.GOARCH, "architecture of the machine: "+strings.Join(architectures(), ", "))
	flag.StringVar(&o.kernel, "kernel", "",
		"directory with boot/vmlinuz-* and lib/modules, of which the newest is taken "+
			"(default bin/kernel if there, else /; with -arch, bin/debian-ARCH, which is the machine's root, too)")
	flag.StringVar(&o.from, "from", "", "with test: only the tests that the file has, a package and a test in a line")
	flag.StringVar(&o.part, "part", "",
		"with -from: NUMBER/PARTS, only this part of the tests, and those that -always names")
	flag.StringVar(&o.always, "always", "internal/vm/quick.txt",
		"with -part: expressions of tests that every part runs")
	flag.DurationVar(&o.timeout, "timeout", 4*time.Hour, "how long the machine may run")
	flag.IntVar(&o.memory, "memory", 1536, "megabytes; what the programs write is in it too")
	flag.IntVar(&o.cpus, "cpus", 2, "processors")
	flag.StringVar(&o.nic, "nic", "virtio-net-pci",
		"model of the two PCI network cards, at 0000:00:10.0 and 0000:00:11.0 (none on s390x)")
	flag.StringVar(&o.accel, "accel", "tcg", "qemu's accelerator: kvm where it works, tcg everywhere")
	flag.StringVar(&o.run, "run", "", "with test: only the tests that match")
	flag.BoolVar(&o.verbose, "v", false, "with test: print what passing tests print, too")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(),
			"usage: vm [flags] COMMAND [ARGUMENT...]\n       vm [flags] test PACKAGE...\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	status, err := run(ctx, o, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "vm:", err)
		status = 97
	}
	os.Exit(status)
}

func run(ctx context.Context, o options, args []string) (status int, err error) {
	share, err := os.MkdirTemp("", "vm")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(share)
	if args[0] == "test" {
		return runTests(ctx, o, share, args[1:])
	}
	dir, err := os.Getwd()
	if err != nil {
		return 0, err
	}
	j := job{Env: os.Environ(), Steps: []step{{Dir: dir, Args: args}}}
	out, err := boot(ctx, o, share, j, os.Stdout)
	if err != nil {
		return 0, err
	}
	return out.Status[0], nil
}

// newest is the kernel to boot: its version, image and modules.
func newest(o options) (version, image, modules string, err error) {
	root, err := o.root()
	if err != nil {
		return "", "", "", err
	}
	images, err := filepath.Glob(filepath.Join(root, "boot", "vmlinuz-*"))
	if err != nil {
		return "", "", "", err
	}
	slices.Sort(images)
	for _, image := range slices.Backward(images) {
		version := filepath.Base(image)[len("vmlinuz-"):]
		modules := filepath.Join(root, "lib", "modules", version)
		if _, err := os.Stat(filepath.Join(modules, "modules.dep")); err == nil {
			return version, image, modules, nil
		} else if _, err := os.Stat(filepath.Join(modules, "kernel")); err == nil {
			return "", "", "", fmt.Errorf("%s has no modules.dep: run depmod -b %s %s", modules, root, version)
		}
	}
	return "", "", "", errors.New("no kernel with modules in " + root +
		": install linux-image-" + o.arch + ", or unpack it and say -kernel DIR")
}

// foreign is whether the machine runs other programs than this one.
func (o options) foreign() bool { return o.arch != runtime.GOARCH }

// root is the directory with the kernel.
func (o options) root() (string, error) {
	root := o.kernel
	switch {
	case root != "":
	case o.foreign():
		root = "bin/debian-" + o.arch
	case exists("bin/kernel"):
		root = "bin/kernel"
	default:
		root = "/"
	}
	return filepath.Abs(root)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
