package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// beInit is this program as the machine's first process: it does the job and powers off.
func beInit() {
	err := func() error {
		if err := mountHost(); err != nil {
			return err
		}
		j, err := readJob()
		if err != nil {
			return err
		}
		if err := setUp(j); err != nil {
			return err
		}
		done := outcome{Lacks: lacking(j.Kinds)}
		var u unix.Utsname
		if err := unix.Uname(&u); err == nil {
			done.Release = unix.ByteSliceToString(u.Release[:])
		}
		if b, err := os.ReadFile("/proc/uptime"); err == nil {
			fmt.Sscan(string(b), &done.Ready)
		}
		for _, s := range j.Steps {
			done.Status = append(done.Status, do(s, j.Env))
		}
		b, err := json.Marshal(done)
		if err == nil {
			err = os.WriteFile("/share/outcome.json", b, 0o644)
		}
		return err
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, "init:", err)
	}
	unix.Sync()
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	select {}
}

type mount struct {
	what, where, kind, options string
	flags                      uintptr
}

func mountAll(list []mount) error {
	for _, m := range list {
		if err := os.MkdirAll(m.where, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.what, m.where, m.kind, m.flags, m.options); err != nil {
			return fmt.Errorf("mount %s (%s) at %s: %w", m.what, m.kind, m.where, err)
		}
	}
	return nil
}

// plan9 are the options of what this machine's files are seen by.
const plan9 = "trans=virtio,version=9p2000.L,msize=524288"

// mountHost makes this machine's files, with a tmpfs over them, the root.
func mountHost() error {
	if err := mountAll([]mount{{"proc", "/proc", "proc", "", 0}, {"sys", "/sys", "sysfs", "", 0},
		{"dev", "/dev", "devtmpfs", "", 0}}); err != nil {
		return err
	}
	files, err := filepath.Glob("/modules/*")
	if err != nil {
		return err
	}
	for _, name := range files {
		if err := loadModule(name); err != nil {
			return fmt.Errorf("load module %s: %w", name, err)
		}
	}
	tty, err := os.OpenFile("/dev/hvc0", os.O_RDWR, 0) // the kernel prints elsewhere
	if err != nil {
		return err
	}
	for fd := range 3 {
		if err := unix.Dup3(int(tty.Fd()), fd, 0); err != nil {
			return err
		}
	}
	if err := mountAll([]mount{
		{"host", "/host", "9p", plan9 + ",cache=loose", unix.MS_RDONLY},
		{"over", "/over", "tmpfs", "size=80%", 0},
	}); err != nil {
		return err
	}
	if err := errors.Join(os.Mkdir("/over/upper", 0o755), os.Mkdir("/over/work", 0o755)); err != nil {
		return err
	}
	if err := mountAll([]mount{{"over", "/new", "overlay", "lowerdir=/host,upperdir=/over/upper,workdir=/over/work",
		0}}); err != nil {
		return err
	}
	for _, dir := range []string{"/proc", "/sys", "/dev"} {
		if err := unix.Mount(dir, "/new"+dir, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move %s: %w", dir, err)
		}
	}
	if err := os.Chdir("/new"); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("change root: %w", err)
	}
	if err := errors.Join(unix.Chroot("."), os.Chdir("/")); err != nil {
		return err
	}
	return mountAll([]mount{
		{"share", "/share", "9p", plan9, 0},
		{"devpts", "/dev/pts", "devpts", "", 0},
		{"shm", "/dev/shm", "tmpfs", "", 0},
		{"run", "/run", "tmpfs", "mode=755", 0},
		{"cgroup", "/sys/fs/cgroup", "cgroup2", "", 0},
	})
}

func loadModule(path string) error {
	b, err := readModule(path)
	if err != nil {
		return err
	}
	err = unix.InitModule(b, "")
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

func readJob() (j job, err error) {
	b, err := os.ReadFile("/share/job.json")
	if err == nil {
		err = json.Unmarshal(b, &j)
	}
	return j, err
}

// setUp loads the modules, and sets up what a booted system has.
func setUp(j job) error {
	if j.Tree != "" {
		if err := mountAll([]mount{{"tree", j.Tree, "9p", plan9 + ",cache=loose", unix.MS_RDONLY}}); err != nil {
			return err
		}
	}
	if j.Modules != "" {
		if err := mountAll([]mount{{j.Modules, "/lib/modules", "", "", unix.MS_BIND}}); err != nil {
			return err
		}
	}
	os.Setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	for _, path := range j.Load { // what is not there for want of one shows in kinds
		if err := loadModule(path); err != nil {
			fmt.Println("load module", path+":", err)
		}
	}
	return errors.Join(
		os.MkdirAll("/run/netns", 0o755), os.MkdirAll("/run/lock", 0o755),
		unix.Sethostname([]byte("vm")),
		unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1 << 16, Max: 1 << 16}),
		exec.Command("ip", "link", "set", "lo", "up").Run(),
	)
}

// do runs one step, and buries whatever its processes leave behind, as an init does.
func do(s step, env []string) (status int) {
	if s.Name != "" {
		fmt.Printf("%s%s\n", stepMark, s.Name)
	}
	path := s.Args[0]
	if !strings.Contains(path, "/") {
		found, err := exec.LookPath(path)
		if err != nil {
			fmt.Println(err)
			return 127
		}
		path = found
	}
	p, err := os.StartProcess(path, s.Args, &os.ProcAttr{Dir: s.Dir, Env: env,
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		fmt.Println(err)
		return 126
	}
	for {
		var w unix.WaitStatus
		pid, err := unix.Wait4(-1, &w, 0, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			fmt.Println("wait:", err)
			return 125
		case pid == p.Pid && w.Signaled():
			return 128 + int(w.Signal())
		case pid == p.Pid:
			return w.ExitStatus()
		}
	}
}

// lacking tries what the kernel is to have, each in a network namespace of its own.
func lacking(kinds []kind) (lacks []string) {
	for _, k := range kinds {
		out, err := exec.Command("unshare", "-n", "sh", "-ec", k.Command).CombinedOutput()
		if err != nil {
			lacks = append(lacks, fmt.Sprintf("%s: %s: %v: %s", k.Name, k.Command, err, strings.TrimSpace(string(out))))
		}
	}
	return lacks
}
