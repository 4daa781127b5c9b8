package nameserver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/resource/names"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/miekg/dns"
)

// TestOddRecords: records that are torn, empty, no JSON, another attachment's, or no regular files are said with their
// names. The server serves all other names, also after a start, and a record that is written anew.
func TestOddRecords(t *testing.T) {
	r := newRig(t)
	r.record(true, "good", names.Record{Addrs: addrs("10.1.0.2/16")})
	file := func(id string) string {
		o := spec.Owner{Network: "net", ContainerID: id, IfName: "eth0"}
		return filepath.Join(r.memory.Dir, names.Kept+"."+names.RecordOf("net", identity.OwnerHash(o)))
	}
	whole, err := os.ReadFile(file("good"))
	if err != nil {
		t.Fatal(err)
	}
	for id, content := range map[string]string{"torn": string(whole[:len(whole)/2]), "empty": "", "garbage": "\x00\xff\x00",
		"another": string(whole), "wrong": `{"addrs":7}`, "long": strings.Repeat("[", 1<<20)} {
		if err := os.WriteFile(file(id), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := r.tell(id); err == nil {
			t.Errorf("a plugin is told that the record %q is served", id)
		}
	}
	if err := os.Mkdir(file("directory"), 0o700); err != nil {
		t.Fatal(err)
	}
	serves := func(what, id, want string) {
		t.Helper()
		if got := r.answer("udp", id, dns.TypeA); got != want {
			t.Errorf("%s: %s is %q, want %q", what, id, got, want)
		}
	}
	serves("with odd records", "good", "10.1.0.2")
	serves("with odd records", "another", "NXDOMAIN")

	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r.log.reset()
	r.start()
	serves("after a start", "good", "10.1.0.2")
	for _, id := range []string{"torn", "empty", "garbage", "another", "wrong", "long", "directory"} {
		key := strings.TrimPrefix(filepath.Base(file(id)), names.Kept+".")
		if !strings.Contains(r.log.String(), key) {
			t.Errorf("the record %q is not said in\n%s", id, r.log)
		}
	}
	r.record(true, "torn", names.Record{Addrs: addrs("10.1.0.3/16")})
	serves("written anew", "torn", "10.1.0.3")
}

func (l *logged) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.Reset()
}
