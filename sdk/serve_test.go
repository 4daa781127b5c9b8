package sdk_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/record"
	"github.com/fairlead-cni/fairlead/plan"
	fairlead "github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/addr"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// plugins are small ones that the test binary is when it is called by their names.
func plugins() []sdk.Plugin {
	type conf struct {
		Label string `json:"label"`
		Fail  bool   `json:"fail"`
	}
	return []sdk.Plugin{
		sdk.Interface("toy", "sets lo up", func(c conf, r *sdk.Request) (sdk.Answer, error) {
			if c.Fail {
				return sdk.Answer{}, spec.Errorf(spec.CodeConfig, "fail: true: asked to")
			}
			p := plan.Plan{link.Up{Link: "lo"}}
			for _, ip := range r.IPs {
				p = append(p, addr.Addr{Link: "lo", Prefix: ip.Address})
			}
			return sdk.Answer{Plan: p}, nil
		}, func(conf) []plan.Kind { return []plan.Kind{link.LoopbackKind()} }),
		sdk.Chained("toychain", "adds nothing", func(conf, *sdk.Request) (sdk.Answer, error) { return sdk.Answer{}, nil }, nil),
		sdk.Allocator("toyipam", "gives one address", func(c struct {
			IPAM struct {
				Type  string `json:"type"`
				Range string `json:"range"`
				Empty bool   `json:"empty"`
			} `json:"ipam"`
		}, r *sdk.Request) (ipam.Allocator, error) {
			return one{c.IPAM.Empty}, nil
		}).KnowsArgs("IP"),
		sdk.Interface("needy", "needs what no kernel has", func(conf, *sdk.Request) (sdk.Answer, error) {
			has, lacks := needed{mark{"had"}, nil}, needed{mark{"wanted"}, errors.New("this kernel has no marks")}
			return sdk.Answer{Plan: plan.Plan{has, lacks, has}}, nil
		}, nil).KnowsArgs("IP"),
		beaconPlugin(), lampPlugin(), markPlugin(),
	}
}

// needed is a mark that a kernel can have or not.
type needed struct {
	mark
	why error
}

func (n needed) Traits() resource.Traits {
	return resource.Traits{Possible: func(*kernel.World) error { return n.why }}
}

// one is an allocator with one address, which it records in a file.
type one struct{ empty bool }

const lease = "/run/toyipam"

func (o one) Allocate(_ context.Context, who spec.Owner) (*spec.Result, error) {
	if o.empty {
		return nil, fmt.Errorf("range 192.0.2.9: %w (size 1, used 1)", ipam.ErrExhausted)
	}
	f, err := os.OpenFile(lease, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fmt.Fprint(f, who)
	return &spec.Result{IPs: []spec.IP{{Address: netip.MustParsePrefix("192.0.2.9/32")}}}, nil
}
func (o one) Verify(context.Context, spec.Owner, *spec.Result) error {
	_, err := os.Stat(lease)
	return err
}
func (o one) Release(context.Context, spec.Owner) error         { os.Remove(lease); return nil }
func (o one) Sweep(context.Context, string, []spec.Owner) error { os.Remove(lease); return nil }
func (o one) Status(context.Context, string) error {
	if o.empty {
		return spec.Errorf(spec.CodeUnavailable, "no address is left")
	}
	return nil
}

func TestMain(m *testing.M) {
	name := filepath.Base(os.Args[0])
	if os.Getenv("TOY") != "" {
		os.Exit(sdk.Serve(append(plugins(), fairlead.All()...), name, "test"))
	}
	nstest.Main(m)
}

type answer struct {
	status         int
	stdout, stderr string
	doc            map[string]any
}

func ask(t *testing.T, plugin, stdin string, env ...string) answer {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	names := []string{plugin}
	for _, p := range plugins() {
		if p.Name != plugin {
			names = append(names, p.Name)
		}
	}
	for _, name := range names {
		if err := os.Symlink(exe, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(filepath.Join(dir, plugin))
	cmd.Env = append([]string{"TOY=1", "CNI_PATH=" + dir}, env...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errb bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errb
	_ = cmd.Run()
	a := answer{cmd.ProcessState.ExitCode(), out.String(), errb.String(), nil}
	if out.Len() > 0 {
		if err := json.Unmarshal(out.Bytes(), &a.doc); err != nil {
			t.Errorf("stdout is not one JSON document: %v: %q", err, out.String())
		}
	}
	return a
}

func conf(version, more string) string {
	return `{"cniVersion":"` + version + `","name":"net","type":"toy"` + more + `}`
}

const prev = `,"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/x"}],"ips":[{"address":"192.0.2.9/32","interface":0}],"vendor":{"big":9007199254740993}}`

func env(verb string, more ...string) []string {
	return append([]string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=c1", "CNI_IFNAME=eth0"}, more...)
}

// TestErrors is what each wrong call is answered with.
func TestErrors(t *testing.T) {
	ns := "CNI_NETNS=" + nstest.NewNS(t)
	for _, tt := range []struct {
		name, plugin, stdin string
		env                 []string
		code                spec.Code
		msg                 string
	}{
		{"P2 all bad variables at once", "toy", conf("1.1.0", ""), []string{"CNI_COMMAND=ADD", "CNI_IFNAME=a/b"}, 4,
			"CNI_CONTAINERID is missing; CNI_NETNS is missing; CNI_IFNAME"},
		{"P3 container ID", "toy", conf("1.1.0", ""), []string{"CNI_COMMAND=DEL", "CNI_IFNAME=eth0", "CNI_CONTAINERID=-x"}, 4,
			"CNI_CONTAINERID"},
		{"P4 too long", "toy", conf("1.1.0", ""), append(env("DEL"), "CNI_IFNAME=sixteen-bytes-xx"), 4, "CNI_IFNAME"},
		{"unknown verb", "toy", conf("1.1.0", ""), env("UPDATE"), 4, "CNI_COMMAND"},
		{"P5 malformed", "toy", conf("1.1.0", ""), env("ADD", ns, "CNI_ARGS=A"), 4, "CNI_ARGS"},
		{"P5 unknown key", "toyipam", conf("1.1.0", `,"ipam":{"type":"toyipam"}`), env("ADD", ns, "CNI_ARGS=MAC=x"), 4, "MAC"},
		{"not JSON", "toy", `{"name`, env("ADD", ns), 6, ""},
		{"C1 no name", "toy", `{"cniVersion":"1.1.0","type":"toy"}`, env("ADD", ns), 7, "name"},
		{"C1 bad name", "toy", `{"cniVersion":"1.1.0","name":"../x","type":"toy"}`, env("ADD", ns), 7, "../x"},
		{"V3 unknown version", "toy", conf("2.0.0", ""), env("ADD", ns), 1, "2.0.0"},
		{"V8 CHECK", "toy", conf("0.3.1", prev), env("CHECK", ns), 1, "0.4.0"},
		{"V9 GC", "toy", conf("1.0.0", ""), env("GC"), 1, "1.1.0"},
		{"V9 STATUS", "toy", conf("1.0.0", ""), env("STATUS"), 1, "1.1.0"},
		{"the plugin's own code", "toy", conf("1.1.0", `,"fail":true`), env("ADD", ns), 7, "asked to"},
		{"C2 ipam.type is a path", "toy", conf("1.1.0", `,"ipam":{"type":"../../bin/sh"}`), env("ADD", ns), 7, "ipam"},
		{"I1 ipam.type is an interface plugin", "toy", conf("1.1.0", `,"ipam":{"type":"toy"}`), env("ADD", ns), 7, `ipam.type: "toy"`},
		{"no such IPAM plugin", "toy", conf("1.1.0", `,"ipam":{"type":"nope"}`), env("ADD", ns), 7, "nope"},
		{"exhausted", "toy", conf("1.1.0", `,"ipam":{"type":"toyipam","empty":true}`), env("ADD", ns), 11, "size 1, used 1"},
		{"P21 STATUS asks the delegate", "toy", conf("1.1.0", `,"ipam":{"type":"toyipam","empty":true}`), env("STATUS"), 50, "no address"},
		{"STATUS without the uplink", "macvlan", `{"cniVersion":"1.1.0","name":"net","type":"macvlan","master":"none0"}`, env("STATUS"), 50, "none0"},
		{"a chain whose capabilities are none", "chain", conf("1.1.0", `,"runtimeConfig":[],"plugins":[{"type":"toy"}]`),
			env("STATUS"), 6, "runtimeConfig"},
		{"a chain without one of its plugins", "chain", conf("1.1.0", `,"plugins":[{"type":"toy"},{"type":"nope"}]`), env("ADD", ns), 7,
			"plugins[1] (nope)"},
		{"P21 STATUS of what the kernel lacks", "needy", conf("1.1.0", ""), env("STATUS"), 50, "this kernel has no marks"},
		{"CHECK of a configuration that is none", "toy", conf("1.1.0", `,"fail":true`+prev), env("CHECK", ns), 7, "asked to"},
		{"chained first", "toychain", conf("1.1.0", ""), env("ADD", ns), 7, "prevResult"},
		{"P14 CHECK without a result", "toy", conf("1.1.0", ""), env("CHECK", ns), 7, "prevResult"},
		{"GC without a list", "toy", conf("1.1.0", ""), env("GC"), 7, "valid-attachments"},
		{"the host's namespace", "toy", conf("1.1.0", `,"ipam":{"type":"toyipam"}`), env("ADD", "CNI_NETNS=/proc/self/ns/net"), 8, "host"},
		{"no such namespace", "toy", conf("1.1.0", `,"ipam":{"type":"toyipam"}`), env("ADD", "CNI_NETNS=/run/netns/none"), 4, "/run/netns/none"},
		{"not a namespace", "toy", conf("1.1.0", `,"ipam":{"type":"toyipam"}`), env("CHECK", "CNI_NETNS=/etc/passwd"), 7, ""},
		{"strict", "toy", conf("1.1.0", `,"strict":true,"lable":1`), env("ADD", ns), 2, `lable: 1: unknown key, and "strict" is set; did you mean "label"?`},
		{"old version, no address", "toy", conf("0.2.0", ""), env("ADD", ns), 7, "0.2.0"},
	} {
		// clause: P2 P3 P4 P5 P7 P8 C1 C2 V3 V8 V9 P14 P21 I2
		t.Run(tt.name, func(t *testing.T) {
			a := ask(t, tt.plugin, tt.stdin, tt.env...)
			if a.status == 0 || a.doc["code"] != float64(tt.code) || !strings.Contains(fmt.Sprint(a.doc["msg"]), tt.msg) ||
				a.doc["cniVersion"] == nil {
				t.Errorf("status %d, stdout %s; want code %d and %q", a.status, a.stdout, tt.code, tt.msg)
			}
			if _, err := os.Stat(lease); err == nil {
				t.Error("an address was taken")
			}
		})
	}
}

// roomy is an allocator that can count.
type roomy struct {
	one
	err error
}

func (r roomy) Room(context.Context, string) (free, size ipam.Count, err error) {
	return ipam.CountOf(3), ipam.CountOf(7), r.err
}

// TestRoom: how much an allocator has is known of one that can count, if it could.
func TestRoom(t *testing.T) {
	broken := errors.New("no file")
	c, err := spec.ParseConf([]byte(conf("1.1.0", `,"ipam":{"type":"roomy"}`)))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		a   ipam.Allocator
		ok  bool
		err error
	}{{roomy{}, true, nil}, {roomy{err: broken}, false, broken}, {one{}, false, nil}} {
		p := sdk.Allocator("roomy", "", func(struct{}, *sdk.Request) (ipam.Allocator, error) { return tc.a, nil })
		free, size, ok, err := p.Room(t.Context(), nil, c)
		if ok != tc.ok || !errors.Is(err, tc.err) || ok && (free != ipam.CountOf(3) || size != ipam.CountOf(7)) {
			t.Errorf("%+v: %v of %v, %v, %v", tc.a, free, size, ok, err)
		}
	}
}

// TestStatusOfRecords: STATUS says so where no ADD could record what it made.
//
// clause: P21
func TestStatusOfRecords(t *testing.T) {
	aside := record.Dir + ".aside"
	if err := os.Rename(record.Dir, aside); err == nil {
		defer os.Rename(aside, record.Dir)
	}
	if err := errors.Join(os.MkdirAll(record.RunDir, 0o700), os.WriteFile(record.Dir, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(record.Dir)

	a := ask(t, "toy", conf("1.1.0", ""), env("STATUS")...)
	if a.status == 0 || a.doc["code"] != float64(spec.CodeUnavailable) || !strings.Contains(fmt.Sprint(a.doc["msg"]), record.Dir) {
		t.Errorf("status %d, stdout %s", a.status, a.stdout)
	}
}

// TestLogged: a call that fails and one that succeeds are lines of the log.
func TestLogged(t *testing.T) {
	log := filepath.Join(t.TempDir(), "calls.log")
	ask(t, "toy", conf("1.1.0", ""), env("STATUS", "FAIRLEAD_LOG="+log)...)
	ask(t, "toy", conf("1.1.0", `,"fail":true`), env("STATUS", "FAIRLEAD_LOG="+log)...)

	lines, err := os.ReadFile(log)
	if err != nil || strings.Count(string(lines), `"STATUS"`) != 2 || strings.Count(string(lines), "asked to") != 1 {
		t.Errorf("%v:\n%s", err, lines)
	}
}

// TestLongError: a message that would fill a log is cut.
//
// clause: P7
func TestLongError(t *testing.T) {
	more := `,"ipam":{"type":"` + strings.Repeat("é", 1<<20) + `"}`
	a := ask(t, "toy", conf("1.1.0", more), env("ADD", "CNI_NETNS="+nstest.NewNS(t))...)
	if a.status == 0 || len(a.stdout) > 17<<10 ||
		!strings.Contains(fmt.Sprint(a.doc["msg"]), "(the message is cut here)") {
		t.Errorf("status %d, %d bytes: %.200s", a.status, len(a.stdout), a.stdout)
	}
}

// TestNoDNS: an empty list of name servers in the configuration is the configuration's word, whatever the IPAM plugin
// says.
//
// clause: C11
func TestNoDNS(t *testing.T) {
	ns := "CNI_NETNS=" + nstest.NewNS(t)
	dir := script(t, `cat >/dev/null; [ $CNI_COMMAND = ADD ] && echo '{"cniVersion":"1.1.0","ips":[{"address":"192.0.2.7/32"}],"dns":{"nameservers":["192.0.2.53"],"domain":"x"}}' || true`)
	for dns, want := range map[string]bool{``: true, `,"dns":{}`: true, `,"dns":{"nameservers":[]}`: false} {
		more := `,"ipam":{"type":"odd"}` + dns
		a := ask(t, "toy", conf("1.1.0", more), env("ADD", ns, "CNI_PATH="+dir, "PATH="+os.Getenv("PATH"))...)
		if a.status != 0 || (a.doc["dns"] != nil) != want {
			t.Errorf("%s: %s", more, a.stdout)
		}
		nstest.RunIn(t, strings.TrimPrefix(ns, "CNI_NETNS="), "ip", "addr", "flush", "dev", "lo")
	}
}

// TestSaidOnce: the plugin is asked for its plan twice in an ADD, and says once which key it does not know.
func TestSaidOnce(t *testing.T) {
	more := `,"lable":1,"ipam":{"type":"toyipam"}`
	a := ask(t, "toy", conf("1.1.0", more), env("ADD", "CNI_NETNS="+nstest.NewNS(t))...)
	if a.status != 0 || strings.Count(a.stderr, "unknown key") != 1 {
		t.Errorf("status %d, %s%s", a.status, a.stdout, a.stderr)
	}
	ask(t, "toy", conf("1.1.0", more), env("DEL")...)
}

// TestNoIPAMPlugin: an ADD that was refused because there is no such IPAM plugin has got no address, so the DEL after
// it has nothing to say. Where there was an ADD, the address has stayed.
//
// clause: P12
func TestNoIPAMPlugin(t *testing.T) {
	ns := "CNI_NETNS=" + nstest.NewNS(t)
	bad := `,"ipam":{"type":"nope"}`
	if a := ask(t, "toy", conf("1.1.0", bad), env("ADD", ns)...); a.status == 0 {
		t.Errorf("ADD: %+v", a)
	}
	if a := ask(t, "toy", conf("1.1.0", bad), env("DEL", ns)...); a.status != 0 {
		t.Errorf("DEL after a refused ADD: %+v", a)
	}
	if a := ask(t, "toy", conf("1.1.0", bad+prev), env("DEL", ns)...); a.status == 0 ||
		!strings.Contains(a.stdout, "nope") {
		t.Errorf("DEL with a result: %+v", a)
	}
	if a := ask(t, "toy", conf("1.1.0", `,"ipam":{"type":"toyipam"}`), env("ADD", ns)...); a.status != 0 {
		t.Fatalf("ADD: %+v", a)
	}
	if a := ask(t, "toy", conf("1.1.0", bad), env("DEL", ns)...); a.status == 0 || !strings.Contains(a.stdout, "nope") {
		t.Errorf("DEL after an ADD: %+v", a)
	}
	if a := ask(t, "toy", conf("1.1.0", `,"ipam":{"type":"toyipam"}`), env("DEL", ns)...); a.status != 0 {
		t.Errorf("DEL: %+v", a)
	}
}

// clause: V1 V2
func TestVersion(t *testing.T) {
	for stdin, want := range map[string]string{"": "1.1.0", `{"cniVersion":"0.4.0"}`: "0.4.0", "garbage": "1.1.0"} {
		a := ask(t, "toy", stdin, "CNI_COMMAND=VERSION")
		if a.status != 0 || a.doc["cniVersion"] != want || len(a.doc["supportedVersions"].([]any)) != 7 {
			t.Errorf("stdin %q: status %d, %s", stdin, a.status, a.stdout)
		}
	}
	if a := ask(t, "toy", ""); a.status != 0 || a.stdout != "" || !strings.Contains(a.stderr, "0.1.0") {
		t.Errorf("without a command: %+v", a)
	}
}

// TestLifeOfToy is the delegate's part of each verb, in process and with a roll-back.
//
// clause: I1 I2 I3 I4 P6 P13 P18 V4 V5
func TestDelegate(t *testing.T) {
	held := func() bool { _, err := os.Stat(lease); return err == nil }
	ipamConf := `,"ipam":{"type":"toyipam"}`
	ns := "CNI_NETNS=" + nstest.NewNS(t)
	a := ask(t, "toy", conf("1.1.0", ipamConf), env("ADD", ns)...)
	if a.status != 0 || !held() || !strings.Contains(a.stdout, "192.0.2.9/32") {
		t.Fatalf("ADD: %+v", a)
	}
	if a := ask(t, "toy", conf("1.1.0", ipamConf+prev), env("DEL")...); a.status != 0 || a.stdout != "" || held() {
		t.Errorf("DEL: %+v, held %v", a, held())
	}
	for _, v := range []string{"", "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0"} {
		a := ask(t, "toy", conf(v, ipamConf), env("ADD", "CNI_NETNS="+nstest.NewNS(t))...)
		if want := string(spec.Version(v).Or010()); a.status != 0 || a.doc["cniVersion"] != want {
			t.Errorf("ADD in %q answers %s%s", v, a.stdout, a.stderr)
		}
		ask(t, "toy", conf(v, ipamConf), env("DEL")...)
	}
	// The address collides with nothing, but the link is missing in a namespace that is gone at once.
	a = ask(t, "toychain", conf("1.1.0", prev), env("ADD", ns)...)
	if a.status != 0 || !strings.Contains(a.stdout, "9007199254740993") {
		t.Errorf("a chained plugin lost a member of the previous result: %+v", a)
	}
}

// clause: P7
func TestUnknownKeysWarn(t *testing.T) {
	a := ask(t, "toy", conf("1.1.0", `,"lable":"x"`), env("ADD", "CNI_NETNS="+nstest.NewNS(t))...)
	if a.status != 0 || !strings.Contains(a.stderr, `did you mean`) {
		t.Errorf("%+v", a)
	}
}

// script puts a delegate called odd into a directory of its own.
func script(t *testing.T, text string) (dir string) {
	dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "odd"), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// No program of the working directory is a delegate, whatever empty elements CNI_PATH has.
//
// clause: I1
func TestNoDelegateInTheWorkingDirectory(t *testing.T) {
	t.Chdir(script(t, "echo ran > ran"))
	for _, path := range []string{"", ":", "::", ":/nowhere", "/nowhere:", "/nowhere::/nowhere"} {
		for _, verb := range []string{"ADD", "CHECK", "STATUS", "GC"} {
			more := ""
			switch verb {
			case "CHECK":
				more = prev
			case "GC":
				more = `,"cni.dev/valid-attachments":[]`
			}
			a := ask(t, "toy", conf("1.1.0", `,"ipam":{"type":"odd"}`+more), env(verb, "CNI_NETNS="+nstest.NewNS(t), "CNI_PATH="+path)...)
			if a.status == 0 || a.doc["code"] != float64(spec.CodeConfig) ||
				!strings.Contains(fmt.Sprint(a.doc["msg"]), "plugin not found") {
				t.Errorf("CNI_PATH %q, %s: status %d, %s", path, verb, a.status, a.stdout)
			}
		}
		ask(t, "toy", conf("1.1.0", `,"ipam":{"type":"odd"}`+prev), env("DEL", "CNI_PATH="+path)...)
	}
	if _, err := os.Stat("ran"); err == nil {
		t.Error("the program of the working directory was run")
	}
}

// A delegate that never answers: a signal ends it, its DEL is tried (clause I3) and not waited for without end.
//
// clause: I3 P7
func TestHangingDelegate(t *testing.T) {
	dir := script(t, `echo "began $CNI_COMMAND" >&2; exec sleep 1000`)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(exe, filepath.Join(dir, "toy")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(dir, "toy"))
	cmd.Env = append(env("ADD", "CNI_NETNS="+nstest.NewNS(t)), "TOY=1", "CNI_PATH="+dir, "PATH="+os.Getenv("PATH"))
	cmd.Stdin = strings.NewReader(conf("1.1.0", `,"ipam":{"type":"odd"}`))
	var out bytes.Buffer
	cmd.Stdout = &out
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said []string
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		if said = append(said, lines.Text()); lines.Text() == "began ADD" {
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); err == nil {
		t.Error("ADD succeeded")
	}
	var doc spec.Error
	if err := json.Unmarshal(out.Bytes(), &doc); err != nil || doc.Code != spec.CodeTryAgain {
		t.Errorf("%v: %s", err, out.String())
	}
	if !slices.Equal(said, []string{"began ADD", "began DEL"}) {
		t.Errorf("the delegate said %q", said)
	}
}

// A delegate's error without a code is an error with one.
//
// clause: P7 I2
func TestDelegateWithoutCode(t *testing.T) {
	for _, doc := range []string{`{"code":0,"msg":"no"}`, `{"msg":"no"}`} {
		dir := script(t, "cat >/dev/null; echo '"+doc+"'; exit 1")
		a := ask(t, "toy", conf("1.1.0", `,"ipam":{"type":"odd"}`), env("DEL", "CNI_PATH="+dir, "PATH="+os.Getenv("PATH"))...)
		if a.status == 0 || a.doc["code"] != float64(spec.CodeInternal) || !strings.Contains(fmt.Sprint(a.doc["msg"]), "no") {
			t.Errorf("%s: status %d, %s", doc, a.status, a.stdout)
		}
	}
}
