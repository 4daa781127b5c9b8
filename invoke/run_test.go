package invoke_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/spec"
)

// call is an ADD with everything in it that an error has to name.
func call() invoke.Call {
	return invoke.Call{
		Command: "ADD", ContainerID: "web", Netns: "/run/netns/web", IfName: "eth0", Network: "lan",
		Path: []string{"/opt/cni/bin", "/usr/lib/cni"}, Args: "A=1;B=2", Stdin: []byte(`{"name":"lan"}`),
	}
}

func bounded(t testing.TB) context.Context {
	ctx := nstest.Context(t)
	return ctx
}

// clause: P1 I1 R2
func TestEnvironment(t *testing.T) {
	dir := plugin(t, "environ")
	c := call()
	c.Env = []string{"CNI_COMMAND=VERSION", "CNI_NETNS_OVERRIDE=1", "TRACEPARENT=00-aa-bb-01", "CNI_ARGS=stale"}
	for _, tc := range []struct {
		name   string
		change func(*invoke.Call)
		want   string
	}{
		{"add", func(*invoke.Call) {},
			"CNI_ARGS=A=1;B=2 CNI_COMMAND=ADD CNI_CONTAINERID=web CNI_IFNAME=eth0 CNI_NETNS=/run/netns/web " +
				"CNI_NETNS_OVERRIDE=1 CNI_PATH=/opt/cni/bin:/usr/lib/cni TRACEPARENT=00-aa-bb-01"},
		{"gc", func(c *invoke.Call) { c.Command, c.ContainerID, c.Netns, c.IfName, c.Args = "GC", "", "", "", "" },
			"CNI_ARGS= CNI_COMMAND=GC CNI_CONTAINERID= CNI_IFNAME= CNI_NETNS= " +
				"CNI_NETNS_OVERRIDE=1 CNI_PATH=/opt/cni/bin:/usr/lib/cni TRACEPARENT=00-aa-bb-01"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := c
			tc.change(&c)
			out, err := invoke.Run(bounded(t), filepath.Join(dir, "environ"), c)
			if err != nil {
				t.Fatal(err)
			}
			var said string
			if err := json.Unmarshal(out, &said); err != nil {
				t.Fatal(err)
			}
			env, stdin, _ := strings.Cut(said, "{")
			lines := strings.Split(strings.TrimSpace(env), "\n")
			slices.Sort(lines)
			if got := strings.Join(lines, " "); got != tc.want {
				t.Errorf("environment\n%s, want\n%s", got, tc.want)
			}
			if "{"+stdin != string(c.Stdin) {
				t.Errorf("stdin {%s, want %s", stdin, c.Stdin)
			}
		})
	}
	t.Run("the caller's own", func(t *testing.T) {
		t.Setenv("TRACESTATE", "vendor=1")
		out, err := invoke.Run(bounded(t), filepath.Join(dir, "environ"), call())
		if err != nil || !bytes.Contains(out, []byte("TRACESTATE=vendor=1")) {
			t.Errorf("%s, %v: the caller's environment is not in it", out, err)
		}
	})
}

// clause: R12 I2 P7
func TestRunFails(t *testing.T) {
	dir := plugin(t, "refuses", "twice", "liar", "garbage", "mute", "silent", "talker", "text", "killed", "crashed",
		"chatty", "endless")
	for name, content := range map[string]string{"data": "", "script": "#!/no/such/interpreter\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "plain"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name   string
		status int
		signal syscall.Signal
		doc    *spec.Error // what it unwraps to
		is     error
		says   []string
	}{
		{name: "refuses", status: 1, doc: &spec.Error{CNIVersion: spec.V100, Code: 11, Msg: "no address left",
			Details: "10.1.0.0/24"},
			says: []string{"no address left; 10.1.0.0/24 (plugin refuses ADD ", "looked everywhere"}},
		{name: "twice", status: 1, doc: &spec.Error{Code: 8, Msg: "the namespace is the host's"}},
		{name: "liar", status: 1, says: []string{"exit status 1", "stdout `{\"cniVersion"}},
		{name: "garbage", status: 0, says: []string{"not one JSON document", "Segmentation fault, nearly"}},
		{name: "mute", status: 0, says: []string{"stdout is empty", "printed nothing"}},
		{name: "silent", status: 3, says: []string{"exit status 3", "printed nothing"}},
		{name: "talker", status: 2, says: []string{"panic: something"}},
		{name: "text", status: 64, says: []string{`stdout "usage: text FILE"`}},
		{name: "killed", status: -1, signal: syscall.SIGKILL, says: []string{"killed", "out of memory?",
			"about to die"}},
		{name: "crashed", status: -1, signal: syscall.SIGTERM, says: []string{`signal "terminated"`, "about to die"}},
		{name: "chatty", status: 1, doc: &spec.Error{Code: 100, Msg: "said all"}},
		{name: "endless", status: 0, says: []string{"longer than"}},
		{name: "plain", status: -1, is: os.ErrPermission, says: []string{"permission denied", "is it executable?"}},
		{name: "data", status: -1, is: syscall.ENOEXEC, says: []string{"exec format error"}},
		{name: "script", status: -1, is: os.ErrNotExist, says: []string{"no such file", "interpreter"}},
		{name: "absent", status: -1, is: os.ErrNotExist},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(dir, tc.name)
			out, err := invoke.Run(bounded(t), path, call())
			var e *invoke.ExecError
			if out != nil || !errors.As(err, &e) {
				t.Fatalf("got %.100q, %v, want an ExecError", out, err)
			}
			if e.Status != tc.status || e.Signal != tc.signal {
				t.Errorf("status %d, signal %d, want %d, %d", e.Status, e.Signal, tc.status, tc.signal)
			}
			var doc *spec.Error
			if errors.As(err, &doc) != (tc.doc != nil) || doc != nil && !reflect.DeepEqual(doc, tc.doc) {
				t.Errorf("unwraps to %+v, want %+v", doc, tc.doc)
			}
			if tc.is != nil && !errors.Is(err, tc.is) {
				t.Errorf("%v: is not %v", err, tc.is)
			}
			for _, s := range append(tc.says, tc.name, path, "ADD", "network lan", "container web", "interface eth0") {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%v: says no %s", err, s)
				}
			}
			if tc.doc != nil && (!strings.HasPrefix(err.Error(), tc.doc.Error()) ||
				strings.Contains(err.Error(), "exit status")) {
				t.Errorf("%v: what matters is not first", err)
			}
			if len(err.Error()) > 4<<10 || len(e.Stderr) > 1<<10 || len(e.Stdout) > 1<<10 {
				t.Errorf("the error is %d bytes long", len(err.Error()))
			}
		})
	}
}

// Only commands that answer have to print: DEL, CHECK, GC and STATUS succeed in silence.
//
// clause: P6
func TestRunSilence(t *testing.T) {
	dir := plugin(t, "mute")
	for _, command := range []string{"DEL", "CHECK", "GC", "STATUS"} {
		c := call()
		c.Command = command
		if out, err := invoke.Run(bounded(t), filepath.Join(dir, "mute"), c); err != nil || len(out) != 0 {
			t.Errorf("%s: %q, %v", command, out, err)
		}
	}
}

// The plugin's stderr arrives whole, while its error carries the beginning.
//
// clause: I1
func TestStderr(t *testing.T) {
	dir := plugin(t, "chatty", "fine", "refuses", "talker")
	var logs bytes.Buffer
	c := call()
	c.Stderr = &logs
	if _, err := invoke.Run(bounded(t), filepath.Join(dir, "fine"), c); err != nil || logs.String() != "a log line\n" {
		t.Errorf("stderr %q, %v", logs.String(), err)
	}
	logs.Reset()
	if _, err := invoke.Run(bounded(t), filepath.Join(dir, "chatty"), c); err == nil || logs.Len() != 4<<20 {
		t.Errorf("%d bytes of stderr, %v, want all of them and an error", logs.Len(), err)
	}
	// Whoever has seen it, and is told why by the plugin, is not shown it again.
	logs.Reset()
	if _, err := invoke.Run(bounded(t), filepath.Join(dir, "refuses"), c); err == nil ||
		strings.Contains(err.Error(), "looked everywhere") || logs.String() != "looked everywhere\n" {
		t.Errorf("stderr %q, %v", logs.String(), err)
	}
	logs.Reset()
	if _, err := invoke.Run(bounded(t), filepath.Join(dir, "talker"), c); err == nil ||
		!strings.Contains(err.Error(), "panic: something") {
		t.Errorf("stderr %q, %v", logs.String(), err)
	}
	// A log that cannot be written must not kill the plugin.
	c.Stderr = broken{}
	if _, err := invoke.Run(bounded(t), filepath.Join(dir, "fine"), c); err != nil {
		t.Error(err)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// clause: R12
func TestTextFileBusy(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "fine")
	if err := os.WriteFile(path, b, 0o755); err != nil {
		t.Fatal(err)
	}
	writer, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	if err := exec.Command(path).Run(); !errors.Is(err, syscall.ETXTBSY) {
		t.Skipf("this kernel runs a file that is being written (6.11 and 6.12 do): %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = invoke.Run(ctx, path, call())
	if !errors.Is(err, syscall.ETXTBSY) || !errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), "text file busy") {
		t.Errorf("while it is written: %v", err)
	}
	var free atomic.Bool
	time.AfterFunc(30*time.Millisecond, func() { free.Store(true); writer.Close() })
	out, err := invoke.Run(bounded(t), path, call())
	if err != nil || string(out) != `{"cniVersion":"1.1.0"}` {
		t.Errorf("when it is written: %q, %v", out, err)
	}
	if !free.Load() {
		t.Error("it ran before the writer closed the file")
	}
}

// clause: V1 V2
func TestVersions(t *testing.T) {
	dir := plugin(t, "modern", "old", "ancient", "vague", "garbage", "silent")
	for _, tc := range []struct {
		name string
		want []spec.Version
		says string
	}{
		{"modern", []spec.Version{spec.V040, spec.V100, spec.V110}, ""},
		{"old", []spec.Version{spec.V010, spec.V020}, ""},
		{"ancient", []spec.Version{spec.V010}, ""},
		{"vague", nil, "no supportedVersions"},
		{"garbage", nil, "not one JSON document"},
		{"silent", nil, "exit status 3"},
	} {
		path := filepath.Join(dir, tc.name)
		got, err := invoke.Versions(bounded(t), invoke.Run, path, invoke.Call{})
		if !slices.Equal(got, tc.want) || (err == nil) != (tc.says == "") {
			t.Errorf("%s: got %v, %v, want %v", tc.name, got, err, tc.want)
		}
		if err != nil && (!strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), "dummy") ||
			!strings.Contains(err.Error(), path)) {
			t.Errorf("%s: %v: want %q", tc.name, err, tc.says)
		}
	}
}

// The peer's plugins answer as ours do.
func TestReferencePlugins(t *testing.T) {
	const dir = "/usr/lib/cni"
	nstest.NeedProgram(t, dir+"/host-local")
	path, err := invoke.Find("host-local", []string{dir})
	if err != nil {
		t.Fatal(err)
	}
	got, err := invoke.Versions(bounded(t), invoke.Run, path, invoke.Call{})
	if err != nil || !slices.Contains(got, spec.V040) || !slices.Contains(got, spec.V100) {
		t.Errorf("versions %v, %v", got, err)
	}
	c := call()
	c.Stdin = []byte(`{"cniVersion":"1.0.0","name":"lan","type":"host-local","ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/33"}]]}}`)
	_, err = invoke.Run(bounded(t), path, c)
	var doc *spec.Error
	if !errors.As(err, &doc) || doc.Msg == "" {
		t.Errorf("%v: no error document in it", err)
	}
}
