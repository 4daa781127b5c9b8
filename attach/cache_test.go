package attach_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

// What ADD remembers is the reference library's format, key for key, in its place and with its modes.
//
// clause: R6
func TestCacheFormat(t *testing.T) {
	w := newWorld(t)
	text := "{\n  \"cniVersion\": \"0.4.0\", \"name\": \"lan\",\n  \"plugins\": [{\"type\": \"first\", \"capabilities\": {\"mac\": true}}]\n}\n"
	a := web(t)
	a.Args = [][2]string{{"A", "1"}, {"B", ""}}
	a.Capabilities = map[string]any{"mac": "02:00:00:00:00:01"}
	if _, err := w.Add(bounded(t), list(t, text), a); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(w.CacheDir, "results", "lan-web-eth0")
	for path, want := range map[string]fs.FileMode{path: 0o600, filepath.Dir(path): 0o700 | fs.ModeDir} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v, want %v", path, info.Mode(), err, want)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(b), "\n") {
		t.Errorf("%s: is not compact", b)
	}
	var entry map[string]json.RawMessage
	var config []byte
	if err := errors.Join(json.Unmarshal(b, &entry), json.Unmarshal(entry["config"], &config)); err != nil {
		t.Fatal(err)
	}
	if string(config) != text {
		t.Errorf("config %q, want the file's bytes", config)
	}
	delete(entry, "config")
	delete(entry, "fairleadNetns") // ours; the library passes over it
	rest, err := json.Marshal(entry)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"kind":"cniCacheV1","containerId":"web","ifName":"eth0","networkName":"lan","netns":"` + a.Netns + `",
		"cniArgs":[["A","1"],["B",""]],"capabilityArgs":{"mac":"02:00:00:00:00:01"},
		"result":{"cniVersion":"0.4.0","interfaces":[{"name":"first","sandbox":"` + a.Netns + `"}],
		"ips":[{"version":"4","address":"10.1.2.3/24"}],"dns":{}}}`
	if got, want := canonical(t, rest), canonical(t, []byte(want)); got != want {
		t.Errorf("entry %s, want %s", got, want)
	}
	// Nothing else lies there, where the library would find it.
	if files := w.results(); len(files) != 1 {
		t.Errorf("results: %q", files)
	}
	if files, err := os.ReadDir(w.CacheDir); err != nil || len(files) != 1 {
		t.Errorf("cache: %v, %v", files, err)
	}
}

// What the reference library wrote is listed, checked, deleted and collected like our own.
//
// clause: R6
func TestCacheOfReference(t *testing.T) {
	ns := nstest.NewNS(t)
	w := newWorld(t)
	golden := func() {
		t.Helper()
		dir := filepath.Join(w.CacheDir, "results")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		files, err := filepath.Glob("testdata/results/*")
		if err != nil || len(files) == 0 {
			t.Fatal(files, err)
		}
		for _, file := range files {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			b = []byte(strings.ReplaceAll(string(b), "/run/netns/NS", ns))
			if err := os.WriteFile(filepath.Join(dir, filepath.Base(file)), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	golden()
	cached, problems := w.List("")
	var got []string
	for _, c := range cached {
		got = append(got, fmt.Sprintf("%s netns=%v args=%v caps=%d ips=%d bare=%v config=%d",
			c.Owner(), c.Netns == ns, c.Args, len(c.Capabilities), ips(c.Result), c.Bare, len(c.Config)))
	}
	want := []string{
		"lan/bare/eth0 netns=false args=[] caps=0 ips=1 bare=true config=0",
		"lan/bare1/eth0 netns=false args=[] caps=0 ips=1 bare=true config=0",
		"lan/db/eth0 netns=true args=[[IgnoreUnknown 1] [K8S_POD_NAME db-0]] caps=1 ips=2 bare=false config=150",
		"lan/odd/eth0 netns=true args=[] caps=0 ips=-1 bare=false config=2",
		"my-lan/db/eth0 netns=true args=[] caps=0 ips=1 bare=false config=94",
	}
	if !slices.Equal(got, want) {
		t.Errorf("list\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if len(problems) != 3 || !strings.Contains(fmt.Sprint(problems), "lan-odd-eth0: result") ||
		!strings.Contains(fmt.Sprint(problems), "lan-torn-eth0") || !strings.Contains(fmt.Sprint(problems), "README") {
		t.Errorf("problems %v", problems)
	}
	if c, _ := w.List("my-lan"); len(c) != 1 || c[0].Network != "my-lan" {
		t.Errorf("of my-lan: %v", c)
	}

	l := chain(t, "1.0.0", three[:1], nil)
	l.Plugins[0].Capabilities = map[string]bool{"portMappings": true}
	db := attach.Attachment{ContainerID: "db", Netns: ns, IfName: "eth0"}
	if _, err := w.Add(bounded(t), l, db); !errors.Is(err, attach.ErrAttached) {
		t.Errorf("ADD: %v", err)
	}
	if err := w.Check(bounded(t), l, db); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	// A port is a number that no double has to have held.
	if c := w.told()[0]; !strings.Contains(string(c.Stdin), `"hostPort":9007199254740993`) || c.Env["CNI_ARGS"] != "IgnoreUnknown=1;K8S_POD_NAME=db-0" {
		t.Errorf("CHECK was told %v %s", c.Env, c.Stdin)
	}
	odd := attach.Attachment{ContainerID: "odd", Netns: ns, IfName: "eth0"}
	if err := w.Check(bounded(t), l, odd); err == nil || !strings.Contains(err.Error(), "result") {
		t.Errorf("CHECK without a result: %v", err)
	}
	for _, id := range []string{"db", "bare", "torn", "odd"} {
		if err := w.Del(bounded(t), l, attach.Attachment{ContainerID: id, Netns: ns, IfName: "eth0"}); err != nil {
			t.Errorf("DEL of %s: %v", id, err)
		}
	}
	left := []string{"README", "lan-bare1-eth0", "lan-torn-eth0.corrupt", "my-lan-db-eth0"}
	if got := w.results(); !slices.Equal(got, left) {
		t.Errorf("left %q, want %q", got, left)
	}
	golden()
	w.told()
	if err := w.GC(bounded(t), l, []spec.Attachment{}); err != nil {
		t.Errorf("GC: %v", err)
	}
	if got := w.results(); slices.Contains(got, "lan-db-eth0") || !slices.Contains(got, "lan-bare-eth0") ||
		!slices.Contains(got, "my-lan-db-eth0") {
		t.Errorf("after GC of lan: %q", got)
	}
	w.expect("DEL first, DEL first")
}

func ips(r *spec.Result) int {
	if r == nil {
		return -1
	}
	return len(r.IPs)
}

// The reference joins names that may hold dashes by dashes. Whose a file is, its content says.
func TestCacheAmbiguousNames(t *testing.T) {
	w := newWorld(t)
	one, two := chain(t, "1.0.0", three[:1], nil), chain(t, "1.0.0", three[:2], nil)
	one.Name, two.Name = "a", "a-b"
	first := attach.Attachment{ContainerID: "b-c", Netns: nstest.NewNS(t), IfName: "eth0"}
	second := attach.Attachment{ContainerID: "c", Netns: nstest.NewNS(t), IfName: "eth0"}
	add := func(l *spec.List, a attach.Attachment) {
		t.Helper()
		if _, err := w.Add(bounded(t), l, a); err != nil {
			t.Fatal(err)
		}
	}
	add(one, first)
	if err := w.Check(bounded(t), two, second); !errors.Is(err, attach.ErrNotAttached) {
		t.Errorf("CHECK of the other: %v", err)
	}
	if err := w.Del(bounded(t), two, second); err != nil {
		t.Fatal(err)
	}
	if len(w.results()) != 1 {
		t.Error("DEL of the one removed the other's file")
	}
	add(two, second)
	for _, check := range []error{w.Check(bounded(t), one, first), w.Check(bounded(t), two, second)} {
		if check != nil {
			t.Error(check)
		}
	}
	if c, problems := w.List(""); len(c) != 2 || len(problems) > 0 || c[0].Owner() == c[1].Owner() {
		t.Errorf("list %v, %v", c, problems)
	}
	// In whichever order they go.
	if err := w.Del(bounded(t), one, first); err != nil {
		t.Fatal(err)
	}
	if err := w.Check(bounded(t), two, second); err != nil {
		t.Error(err)
	}
	if _, err := w.Add(bounded(t), two, second); !errors.Is(err, attach.ErrAttached) {
		t.Errorf("a second ADD: %v", err)
	}
	if err := w.Del(bounded(t), two, second); err != nil || len(w.results()) > 0 {
		t.Errorf("%v, left %q", err, w.results())
	}
}

// Names have no longest length, names of files have.
func TestCacheLongNames(t *testing.T) {
	w := newWorld(t)
	l := chain(t, "1.0.0", three[:1], nil)
	ns := nstest.NewNS(t)
	long := func(end string) attach.Attachment {
		return attach.Attachment{ContainerID: strings.Repeat("x", 300) + end, Netns: ns, IfName: "eth0"}
	}
	for _, end := range []string{"1", "2"} {
		if _, err := w.Add(bounded(t), l, long(end)); err != nil {
			t.Fatal(err)
		}
	}
	for _, end := range []string{"1", "2"} {
		if err := errors.Join(w.Check(bounded(t), l, long(end)), w.Del(bounded(t), l, long(end))); err != nil {
			t.Error(err)
		}
	}
	if got := w.results(); len(got) > 0 {
		t.Errorf("left %q", got)
	}
}

// No reader can find half a file: it comes into its directory by a rename, complete.
func TestCacheWholeFiles(t *testing.T) {
	w := newWorld(t)
	dir := filepath.Join(w.CacheDir, "results")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	fd, err := syscall.InotifyInit1(syscall.IN_NONBLOCK | syscall.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if _, err := syscall.InotifyAddWatch(fd, dir,
		syscall.IN_CREATE|syscall.IN_MODIFY|syscall.IN_MOVED_TO|syscall.IN_DELETE); err != nil {
		t.Fatal(err)
	}
	l := chain(t, "1.0.0", three[:1], nil)
	a := web(t)
	if _, err := w.Add(bounded(t), l, a); err != nil {
		t.Fatal(err)
	}
	if err := w.Del(bounded(t), l, a); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4<<10)
	n, err := syscall.Read(fd, b)
	if err != nil {
		t.Fatal(err)
	}
	var events []uint32
	for b = b[:n]; len(b) >= syscall.SizeofInotifyEvent; {
		events = append(events, binary.NativeEndian.Uint32(b[4:]))
		b = b[syscall.SizeofInotifyEvent+binary.NativeEndian.Uint32(b[12:]):]
	}
	if want := []uint32{syscall.IN_MOVED_TO, syscall.IN_DELETE}; !slices.Equal(events, want) {
		t.Errorf("events %#x, want %#x: moved here, deleted", events, want)
	}
}

// A cache that is not there is empty; one that cannot be read is a problem, and no empty one.
func TestListNoCache(t *testing.T) {
	w := newWorld(t)
	if c, problems := w.List(""); len(c)+len(problems) > 0 {
		t.Errorf("%v, %v", c, problems)
	}
	if err := os.Mkdir(w.CacheDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.CacheDir, "results"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, problems := w.List(""); len(problems) != 1 {
		t.Errorf("problems %v", problems)
	}
	if err := w.GC(bounded(t), chain(t, "1.1.0", three[:1], nil), []spec.Attachment{}); err == nil {
		t.Error("GC took an unreadable cache for an empty one")
	}
}
