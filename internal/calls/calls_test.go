package calls

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

func TestMain(m *testing.M) {
	if args := os.Getenv("CALLS_WRITER"); args != "" {
		os.Exit(writer(strings.Split(args, ",")))
	}
	if path := os.Getenv("CALLS_COST"); path != "" {
		os.Exit(costs(path))
	}
	nstest.Main(m)
}

func TestParse(t *testing.T) {
	for text, want := range map[string]Setting{
		"all":                    {On: true, Size: defaultSize},
		"off":                    {Size: defaultSize},
		"Errors":                 {On: true, Errors: true, Size: defaultSize},
		"file":                   {On: true, To: "file", Size: defaultSize},
		"errors,journald":        {On: true, Errors: true, To: "journald", Size: defaultSize},
		"/var/log/x.log, 1m,all": {On: true, To: "/var/log/x.log", Size: 1 << 20},
		"2G":                     {On: true, Size: 2 << 30},
	} {
		if got, err := Parse(text); err != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"loud":             `"loud" is not known`,
		"all,errors":       `"errors" repeats an earlier word`,
		"file,/x":          `"/x" repeats an earlier word`,
		"all,":             `"" is not known`,
		"1K":               "too small",
		"all,99999999999G": "not known",
		"calls.log":        `"calls.log" is not known`,
	} {
		if got, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) || got != (Setting{}) {
			t.Errorf("%q: %+v, %v; want an error with %q", text, got, err, want)
		}
	}
}

// The environment counts before the file, and what is wrong is named by its place and value.
func TestRead(t *testing.T) {
	for _, tc := range []struct {
		file, env string
		on        bool
		err       string
	}{
		{"", "", false, ""},
		{"", "all", true, ""},
		{`{"log": "off"}`, "all", true, ""},
		{`{"log": "all"}`, "off", false, ""},
		{`{"log": "all"}`, "", true, ""},
		{`{"log": null}`, "", false, ""},
		{`{}`, "", false, ""},
		{`{"log": "all"}`, "loud", false, `environment: FAIRLEAD_LOG "loud"`},
		{`{"log": "loud"}`, "", false, `/etc/cni/fairlead.json: log: "loud"`},
		{`{"log": 5}`, "", false, `/etc/cni/fairlead.json: log: 5: want a text`},
		{`{"log": "all", "debugCommands": true}`, "", true, ""},
		{`{"log": "all", "logg": 1}`, "", false, `/etc/cni/fairlead.json: logg: unknown key`},
		{`{"log": `, "", false, `/etc/cni/fairlead.json: want an object`},
		{` `, "", false, `/etc/cni/fairlead.json: want an object`},
		{strings.Repeat("x", maxSettings+1), "", false, "more than"},
	} {
		os.Remove(Settings)
		if tc.file != "" {
			if err := os.WriteFile(Settings, []byte(tc.file), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		s, err := Read([]string{"FAIRLEAD_LOG=errors", "FAIRLEAD_LOGS=x", "FAIRLEAD_LOG=" + tc.env})
		if s.On != tc.on || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%+v: %+v, %v", tc, s, err)
		}
	}
	os.Remove(Settings)
	if err := os.Mkdir(Settings, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(nil); err == nil || !strings.Contains(err.Error(), Settings+": is a directory") {
		t.Errorf("a directory: %v", err)
	}
}

func TestTrace(t *testing.T) {
	const id, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	for parent, want := range map[string]bool{
		"00-" + id + "-" + span + "-01":                             true,
		"cc-" + id + "-" + span + "-01-more":                        true,
		"00-" + id + "-" + span + "-01-more":                        false,
		"ff-" + id + "-" + span + "-01":                             false,
		"00-" + strings.ToUpper(id) + "-" + span + "-01":            false,
		"00-" + strings.Repeat("0", 32) + "-" + span + "-01":        false,
		"00-" + id + "-" + strings.Repeat("0", 16) + "-01":          false,
		"00-" + id[1:] + "-" + span + "-01":                         false,
		"00-" + id + "-" + span:                                     false,
		"cc-" + id + "-" + span + "-01-\n":                          false,
		"cc-" + id + "-" + span + "-01-" + strings.Repeat("x", 300): false,
		"": false,
	} {
		var l Line
		if l.trace(parent, "a=b"); (l.Traceparent == parent && l.Tracestate == "a=b") != (want && parent != "") {
			t.Errorf("%q: %q %q, want %v", parent, l.Traceparent, l.Tracestate, want)
		}
	}
	var l Line
	if l.trace("00-"+id+"-"+span+"-01", "a=\x01"); l.Traceparent == "" || l.Tracestate != "" {
		t.Errorf("a state that is none: %q %q", l.Traceparent, l.Tracestate)
	}
}

func example() Line {
	return Line{Time: time.Date(2026, 11, 23, 1, 2, 3, 456000, time.UTC), Verb: "ADD", Plugin: "bridge", Network: "web",
		Container: "0123456789ab", IfName: "eth0", Pod: "default/web-0", Seconds: 0.0123,
		Steps: []Step{{"veth", 0.0021}}, Code: 11, Error: "no address\nleft", Traceparent: "00-a", Tracestate: "b"}
}

// A line comes back from a file as it was, and from the journal too: each field by the native protocol.
func TestRoundTrip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log", "calls.log")
	s := Setting{On: true, To: path, Size: defaultSize}
	want := example()
	if err := s.Write(want); err != nil {
		t.Fatal(err)
	}
	if got := lines(t, path); len(got) != 1 || !reflect.DeepEqual(got[0], want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if st, err := os.Stat(path); err != nil || st.Mode() != 0o600 {
		t.Errorf("%v, %v: want mode 0600", st.Mode(), err)
	}

	if err := (Setting{To: ToJournal}).Write(want); err == nil || !strings.Contains(err.Error(), Socket) {
		t.Errorf("a journal that is not there: %v", err)
	}
	if err := os.MkdirAll(filepath.Dir(Socket), 0o755); err != nil {
		t.Fatal(err)
	}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: Socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := (Setting{Size: defaultSize}).Write(want); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 64<<10)
	n, err := conn.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	entry := nativeFields(t, buf[:n])
	if entry["PRIORITY"] != "3" || entry["SYSLOG_IDENTIFIER"] != "fairlead" || entry["FAIRLEAD_CODE"] != "11" ||
		entry["FAIRLEAD_ERROR"] != want.Error || entry["FAIRLEAD_POD"] != want.Pod ||
		!strings.HasPrefix(entry["MESSAGE"], "ADD bridge web/0123456789ab/eth0 (default/web-0): 12.3 ms, code 11: no address") {
		t.Errorf("entry %q", entry)
	}
	entry["__CURSOR"] = "s=1"
	doc, _ := json.Marshal(entry)
	if got, cursor, ok := FromJournal(doc); !ok || cursor != "s=1" || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %q, %v; want %+v", got, cursor, ok, want)
	}
	if _, _, ok := FromJournal([]byte(`{"__CURSOR":"s=2","MESSAGE":"other","SYSLOG_IDENTIFIER":"fairlead"}`)); ok {
		t.Error("an entry of others is taken for a line")
	}
}

// nativeFields reads a datagram as journald does (systemd.io/JOURNAL_NATIVE_PROTOCOL).
func nativeFields(t *testing.T, b []byte) map[string]string {
	t.Helper()
	fields := map[string]string{}
	for len(b) > 0 {
		line, rest, ok := strings.Cut(string(b), "\n")
		name, value, text := strings.Cut(line, "=")
		if !text {
			if len(rest) < 8 {
				t.Fatalf("%q has no length", name)
			}
			n := 0
			for i := range 8 {
				n |= int(rest[i]) << (8 * i)
			}
			value, rest = rest[8:8+n], rest[8+n:]
			if rest[0] != '\n' {
				t.Fatalf("%q does not end", name)
			}
			rest = rest[1:]
		}
		if !ok || name == "" || len(name) > 64 || strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789") != "" || name[0] == '_' {
			t.Fatalf("field %q", name)
		}
		fields[name], b = value, []byte(rest)
	}
	return fields
}

func lines(t testing.TB, path string) (all []Line) {
	t.Helper()
	if _, err := Since(path, Position{}, func(l Line) { all = append(all, l) }); err != nil {
		t.Fatal(err)
	}
	return all
}

// Whatever a call says, its line is bounded, valid, and one line.
func TestBounds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "calls.log")
	l := Line{Verb: strings.Repeat("\x00", 1000), Plugin: strings.Repeat("\xff", 1000), Network: strings.Repeat("\"", 1000),
		Container: strings.Repeat("\n", 1000), IfName: strings.Repeat("<", 1000), Pod: strings.Repeat("ä", 1000),
		Error: strings.Repeat("\x01", 100000)}
	for range 100 {
		l.AddStep(time.Second, func() string { return strings.Repeat("\x02", 1000) })
	}
	l.AddStep(shortStep-1, func() string { t.Error("asked"); return "" })
	if err := (Setting{To: path, Size: minSize}).Write(l); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(path)
	if err != nil || st.Size() >= maxLine {
		t.Errorf("%v, %v: want less than %d bytes", st.Size(), err, maxLine)
	}
	if got := lines(t, path); len(got) != 1 || len(got[0].Steps) != maxSteps || !strings.HasSuffix(got[0].Error, "…") {
		t.Errorf("%+v", got)
	}
	if b := l.datagram(); len(b) > 3*maxLine {
		t.Errorf("datagram of %d bytes", len(b))
	} else {
		nativeFields(t, b)
	}
}

// What could lead the line elsewhere is refused, and nothing waits.
func TestRefused(t *testing.T) {
	dir := t.TempDir()
	victim := filepath.Join(dir, "victim")
	if err := os.WriteFile(victim, []byte("x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, make := range map[string]func(path string) error{
		"symlink":  func(path string) error { return os.Symlink(victim, path) },
		"hardlink": func(path string) error { return os.Link(victim, path) },
		"fifo":     func(path string) error { return mkfifo(path) },
		"dir":      func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		path := filepath.Join(dir, name)
		if err := make(path); err != nil {
			t.Fatal(err)
		}
		if err := (Setting{To: path, Size: defaultSize}).Write(example()); err == nil ||
			!strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if b, err := os.ReadFile(victim); err != nil || string(b) != "x\n" {
		t.Errorf("victim %q, %v", b, err)
	}
}

// Eight processes at a time lose no line, tear none, and no file is longer than its half of the bound.
func TestParallel(t *testing.T) {
	const writers, each, size = 8, 200, 2 << 20
	path := filepath.Join(t.TempDir(), "calls.log")
	var running []func() error
	for w := range writers {
		running = append(running, start(t, "CALLS_WRITER="+strings.Join([]string{path, strconv.Itoa(w), strconv.Itoa(each),
			strconv.Itoa(size)}, ",")))
	}
	for _, wait := range running {
		if err := wait(); err != nil {
			t.Error(err)
		}
	}
	seen := map[string]int{}
	for _, l := range lines(t, path) {
		seen[l.Container]++
	}
	for w := range writers {
		for n := range each {
			if id := fmt.Sprintf("%d-%d", w, n); seen[id] != 1 {
				t.Errorf("line %s is there %d times", id, seen[id])
			}
		}
	}
	for _, file := range []string{path, Rotated(path)} {
		if st, err := os.Stat(file); err != nil || st.Size() > size/2 {
			t.Fatalf("%s: %v, %v; want at most %d bytes", file, st, err, size/2)
		}
	}
}

// writer is one process of TestParallel: with lines of a kilobyte, all of them need both files.
func writer(args []string) int {
	each, _ := strconv.Atoi(args[2])
	size, _ := strconv.ParseInt(args[3], 10, 64)
	s := Setting{To: args[0], Size: size}
	for n := range each {
		l := example()
		l.Container, l.Error = fmt.Sprintf("%s-%d", args[1], n), strings.Repeat("x", 500)
		if err := s.Write(l); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return 0
}

// Who reads on after rotations, also between them, gets each line once and in order.
func TestSince(t *testing.T) {
	path := filepath.Join(t.TempDir(), "calls.log")
	s := Setting{To: path, Size: minSize}
	var at Position
	var got []string
	written := 0
	write := func(n int) {
		t.Helper()
		for range n {
			l := example()
			l.Container = strconv.Itoa(written)
			written++
			if err := s.Write(l); err != nil {
				t.Fatal(err)
			}
		}
	}
	read := func() {
		t.Helper()
		var err error
		if at, err = Since(path, at, func(l Line) { got = append(got, l.Container) }); err != nil {
			t.Fatal(err)
		}
	}
	read() // there is no file yet
	for _, n := range []int{1, 0, 50, 100, 130, 7} {
		write(n)
		read()
	}
	if err := os.Rename(path, Rotated(path)); err != nil { // and nobody has written since
		t.Fatal(err)
	}
	read()
	write(3)
	read()
	var want []string
	for n := range written {
		want = append(want, strconv.Itoa(n))
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v\nwant 0 to %d", got, written-1)
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fmt.Fprint(f, "no line\n{\"verb\":\"ADD\",\"container\":\"torn")
	before := len(got)
	read()
	fmt.Fprint(f, "\"}\n")
	if read(); len(got) != before+1 || got[before] != "torn" {
		t.Errorf("behind what is no line: %q", got[before:])
	}
}

// A process that was stopped while it had the file locked keeps no other from writing, but from turning it over.
func TestLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "calls.log")
	s := Setting{To: path, Size: minSize}
	if err := s.Write(example()); err != nil {
		t.Fatal(err)
	}
	f, err := openLog(path)
	if err != nil || f.waiting != nil {
		t.Fatal(f, err)
	}
	if err := s.Write(example()); err != nil || len(lines(t, path)) != 2 {
		t.Errorf("with the lock: %v, %d lines", err, len(lines(t, path)))
	}
	if err := appendLine(path, 600, []byte(strings.Repeat("x", 500))); err == nil || !strings.Contains(err.Error(), "locked") {
		t.Errorf("a full file with the lock: %v", err)
	}
	f.close()
	if err := s.Write(example()); err != nil || len(lines(t, path)) != 3 {
		t.Errorf("without the lock: %v, %d lines", err, len(lines(t, path)))
	}
}

// On a full disk no half a line stays.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	mountSmall(t, dir, 64<<10)
	path := filepath.Join(dir, "calls.log")
	var err error
	for range 1000 {
		if err = (Setting{To: path, Size: defaultSize}).Write(example()); err != nil {
			break
		}
	}
	if !errors.Is(err, errNoSpace) {
		t.Fatalf("%v, want %v", err, errNoSpace)
	}
	b, err := os.ReadFile(path)
	if err != nil || len(b) == 0 || b[len(b)-1] != '\n' {
		t.Errorf("%d bytes, %v, which do not end with a line", len(b), err)
	}
	if n := len(lines(t, path)); n != strings.Count(string(b), "\n") {
		t.Errorf("%d lines of %d can be read", n, strings.Count(string(b), "\n"))
	}
}
