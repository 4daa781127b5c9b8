package main

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A machine is where and with what the figures were taken.
type machine struct {
	Date, Kernel, CPU, Go string
	Cores                 int
	Reference             string // its version
	Iptables              string // the variant that the reference uses: it decides much of its time
	Scheduling            string
	Rounds                int
	LoadBefore, LoadAfter string
	Virtual, Newest       bool
	Ours                  string // version of our plugins, or commit
}

func machineFacts(o options) machine {
	return machine{
		Date: time.Now().UTC().Format(time.DateOnly), Kernel: kernelRelease(), CPU: cpu(), Cores: runtime.NumCPU(),
		Go:        runtime.Version(),
		Reference: referenceVersion(o.reference), Iptables: firstLine("iptables", "-V"),
		Scheduling: scheduling(), Rounds: o.rounds, LoadBefore: loadAverage(), Virtual: o.virtual,
		Newest: o.newest, Ours: firstLine(filepath.Join(o.plugins, "bridge")),
	}
}

// section is where on the page the figures of this machine stand.
func (m machine) section() string {
	switch {
	case m.Virtual:
		return virtual
	case m.Newest:
		return newest
	}
	return here
}

func (m machine) facts() [][2]string {
	return [][2]string{
		{"date", m.Date},
		{"kernel", m.Kernel},
		{"processor", m.CPU + ", " + strconv.Itoa(m.Cores) + " cores"},
		{"Go", m.Go},
		{"ours", m.Ours},
		{"reference", m.Reference},
		{"iptables of the reference", m.Iptables},
		{"scheduling", m.Scheduling},
		{"containers measured for each line", strconv.Itoa(m.Rounds)},
		{"load average before and after", m.LoadBefore + " and " + m.LoadAfter},
	}
}

// referenceVersion is what the plugins say of themselves, which in Debian is not much, and the package.
func referenceVersion(dir string) string {
	v := firstLine(filepath.Join(dir, "bridge"))
	out, err := exec.Command("dpkg-query", "-W", "-f", "${Version}", "containernetworking-plugins").Output()
	if err == nil && dir == "/usr/lib/cni" {
		v += ", Debian containernetworking-plugins " + string(out)
	}
	return v
}

// firstLine is the first line that a program prints.
func firstLine(name string, args ...string) string {
	out, err := exec.Command(name, args...).CombinedOutput()
	if len(out) == 0 && err != nil {
		return err.Error()
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return line
}

func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return err.Error()
	}
	return unix.ByteSliceToString(u.Release[:]) + " " + unix.ByteSliceToString(u.Machine[:])
}

func cpu() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if name, value, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// scheduling says whether other load on the machine could get in between: the plugins inherit it.
func scheduling() string {
	attr, err := unix.SchedGetAttr(0, 0)
	switch {
	case err != nil:
		return err.Error()
	case attr.Policy == unix.SCHED_FIFO || attr.Policy == unix.SCHED_RR:
		return "real-time, so that other load stays behind"
	}
	return "as any process"
}

func loadAverage() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return err.Error()
	}
	one, _, _ := strings.Cut(string(b), " ")
	return one
}

// absolute is dir as a plugin directory that every process finds.
func absolute(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	_, err = os.Stat(dir)
	return dir, err
}
