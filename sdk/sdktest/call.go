package sdktest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Call runs one plugin once, as a runtime does.
type Call struct {
	Dir  string          // where the plugin lies, see Plugins
	Conf json.RawMessage // the plugin's stdin

	Verb, ContainerID, Netns, IfName string

	Host  string                // the namespace that is the host; empty: the test's own
	Under []string              // a command, and its arguments, to run the plugin under, such as strace
	Start func(*exec.Cmd) error // runs the plugin; nil: exec.Cmd.Run
}

// Do executes the plugin and returns what it prints. An error document is returned as a *spec.Error. Only ADD may print
// anything else.
func (c Call) Do() (json.RawMessage, error) {
	var conf struct{ Type string }
	if err := json.Unmarshal(c.Conf, &conf); err != nil {
		return nil, err
	}
	argv := append(slices.Clone(c.Under), filepath.Join(c.Dir, conf.Type))
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin = bytes.NewReader(c.Conf)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+c.Verb, "CNI_CONTAINERID="+c.ContainerID, "CNI_NETNS="+c.Netns,
		"CNI_IFNAME="+c.IfName, "CNI_PATH="+c.Dir)
	start := cmd.Run
	if c.Start != nil {
		start = func() error { return c.Start(cmd) }
	}
	if err := nstest.In(c.Host, start); err != nil {
		if e, ok := spec.DecodeError(out.Bytes()); ok {
			return nil, e
		}
		return nil, fmt.Errorf("%s %s: %w: stdout %q, stderr %q", conf.Type, c.Verb, err, out.String(), stderr.String())
	}
	switch {
	case c.Verb != "ADD" && out.Len() > 0:
		return nil, fmt.Errorf("%s printed %q on stdout", c.Verb, out.String())
	case c.Verb == "ADD" && !json.Valid(out.Bytes()):
		return nil, fmt.Errorf("stdout is not one document: %q", out.String())
	}
	return out.Bytes(), nil
}

// shared matches the lines of HostState that belong to a network or to none, and so may stay after DEL.
const shared = `last_reserved_ip|\.fairlead-index/|fairlead/nft-ending$|/lock$|\.lock$|fairlead/ipam|fairlead/network-|` +
	`memory/closed|memory/gateway|memory/pinned|fairlead/history/|[0-9a-f]{12} [0-9a-f]{16} [^/]+//`

// HostState returns what attachments have on the test's host, one line each: links, addresses, routes, elements and
// rules of the packet filter, leases and records. The programs of iptables are only asked where they have tables: the
// state is read after each of thousands of calls.
func HostState(t testing.TB) string {
	t.Helper()
	s := nstest.Run(t, "sh", "-c", `exec 2>/dev/null
		ip -o link; echo ====
		ip -br addr; ip route; ip -6 route; echo ====
		rules=$(nft -a list ruleset)
		legacy=; read -r legacy </proc/net/ip_tables_names
		case $legacy:$rules in [!:]*|*"table ip "*) iptables-save; esac
		legacy=; read -r legacy </proc/net/ip6_tables_names
		case $legacy:$rules in [!:]*|*"table ip6 "*) ip6tables-save; esac
		echo ====; echo "$rules"; echo ====
		find /var/lib/cni /run/cni -type f; true`)
	parts := strings.Split(s, "====\n")
	if len(parts) != 5 || parts[0] == "" {
		t.Fatalf("state of the host: %q", s)
	}

	linkName := regexp.MustCompile(`^\d+: ([^:@]+)`)
	linkAlias := regexp.MustCompile(` (?:alias|altname) .*`)
	passing := regexp.MustCompile(`@\S+|\blinkdown\b| (?:UP|DOWN|UNKNOWN|LOWERLAYERDOWN) `)
	var places []string
	for line := range strings.Lines(parts[0]) {
		places = append(places, linkName.FindStringSubmatch(line)[1], linkAlias.FindString(line))
	}
	for line := range strings.Lines(parts[1]) {
		places = append(places, passing.ReplaceAllString(line, " "))
	}
	slices.Sort(places)
	filters := append(matching(parts[2], `CNI-[0-9a-f]{8}|CNI-DN-|[0-9a-f]{12} [0-9a-f]{16}`),
		matching(parts[3], `elements|fairlead.*[0-9a-f]{12} [0-9a-f]{16}`)...)
	files := strings.Split(parts[4], "\n")
	slices.Sort(files)

	volatile := regexp.MustCompile(shared)
	var keep []string
	for _, line := range slices.Concat(places, filters, files) {
		line = strings.Join(strings.Fields(line), " ")
		if line != "" && !volatile.MatchString(line) {
			keep = append(keep, line)
		}
	}
	return strings.Join(keep, "\n")
}

// matching returns the lines of a text that an expression matches.
func matching(text, expression string) (lines []string) {
	want := regexp.MustCompile(expression)
	for line := range strings.Lines(text) {
		if want.MatchString(line) {
			lines = append(lines, line)
		}
	}
	return lines
}

// Killed calls add again and again and kills it at each system call that can change something, one system call later
// each time, until add completes. After each kill, del must succeed and leave the host as it was before. Under is the
// command under which add must run the plugin. It needs strace(1), without which the test is skipped. With FAIRLEAD_RUN
// in the environment, the number of a run of the tests, it kills at each eighth call, and eight runs do at all.
func Killed(t *testing.T, add func(netns string, under ...string) error, del func(netns string) error) {
	t.Helper()
	nstest.NeedProgram(t, "strace")
	clean := HostState(t)
	calls := "sendto,sendmsg,write,pwrite64,renameat,renameat2,rename,linkat,unlinkat,mkdirat,ftruncate,flock"
	last := nstest.Sample(t, 8, func(n int) (killed bool) {
		netns := nstest.NewNS(t)
		err := add(netns, "strace", "-f", "-qqq", "-o", "/dev/null", "-e", "trace="+calls, "-e",
			"inject="+calls+fmt.Sprintf(":signal=SIGKILL:when=%d", n))
		if err := del(netns); err != nil {
			t.Fatalf("del after a kill at call %d: %v", n, err)
		}
		if after := HostState(t); after != clean {
			t.Fatalf("a kill at call %d left\n%s\nbefore it was\n%s", n, after, clean)
		}
		return err != nil
	})
	t.Logf("the last kill is at call %d", last)
	if last == 0 {
		t.Error("add was not killed")
	}
}
