package resolv

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-cni/fairlead/spec"
)

// What a command sees as /etc/resolv.conf: what the networks say, completed by what the host can say to
// somebody in another namespace.
func TestResolvConf(t *testing.T) {
	const (
		stub = "nameserver 127.0.0.53\noptions edns0\nsearch lan\n"
		real = "nameserver 192.0.2.53\nsearch lan\n"
	)
	dns := func(servers ...string) spec.DNS { return spec.DNS{Nameservers: servers} }
	for _, c := range []struct {
		name         string
		dns          spec.DNS
		etc, systemd string // empty: there is no such file
		want, note   string // without the comment; empty: the host's file as it is
	}{
		{"nothing to say", spec.DNS{}, real, "", "", ""},
		{"the host has no names either", spec.DNS{}, "", "", "", ""},
		{"a server", dns("192.0.2.1", "2001:db8::1"), real, "", "nameserver 192.0.2.1\nnameserver 2001:db8::1\n", ""},
		{"everything", spec.DNS{Nameservers: []string{"192.0.2.1"}, Domain: "example.org", Search: []string{"example.net"},
			Options: []string{"ndots:2", "rotate"}}, real, "",
			"nameserver 192.0.2.1\nsearch example.net example.org\noptions ndots:2 rotate\n", ""},
		{"the host's servers", spec.DNS{Search: []string{"example.net"}}, real, "",
			"nameserver 192.0.2.53\nsearch example.net\n", ""},
		{"a stub on the host's loopback", spec.DNS{}, stub, real, real, ""},
		{"a stub, and a search", spec.DNS{Search: []string{"example.net"}}, stub, real,
			"nameserver 192.0.2.53\nsearch example.net\n", ""},
		{"a stub, and a server", dns("192.0.2.1"), stub, "", "nameserver 192.0.2.1\n", ""},
		{"only a stub", spec.DNS{}, stub, "", "", "127.0.0.53, which is out of reach"},
		{"only a stub in IPv6", spec.DNS{}, "nameserver ::1\n", "", "", "::1, which is out of reach"},
		{"only a stub, and a search", spec.DNS{Search: []string{"example.net"}}, stub, stub, "search example.net\n", "--dns"},
	} {
		dir := t.TempDir()
		file := func(name, content string) string {
			path := filepath.Join(dir, name)
			if content != "" {
				if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			return path
		}
		got, note := ResolvConf(c.dns, file("etc", c.etc), file("systemd", c.systemd))
		_, text, commented := strings.Cut(string(got), "results.\n")
		if !commented {
			text = string(got)
		}
		if text != c.want || !strings.Contains(note, c.note) || (note == "") != (c.note == "") {
			t.Errorf("%s:\n%s(%s)\nwant\n%s(%s)", c.name, text, note, c.want, c.note)
		}
	}
}

// A pipe that nobody writes to says nothing of names, and is not waited for.
func TestResolvConfPipe(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "resolv.conf")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if content, note := ResolvConf(spec.DNS{}, pipe, pipe); content != nil || note != "" {
		t.Errorf("%s(%s)", content, note)
	}
}

func TestMergeDNS(t *testing.T) {
	got := spec.DNS{Nameservers: []string{"192.0.2.1"}, Search: []string{"a"}}
	MergeDNS(&got, spec.DNS{Nameservers: []string{"192.0.2.2", "192.0.2.1"}, Domain: "b", Search: []string{"c"}})
	if s := strings.Join(append(append(got.Nameservers, got.Search...), got.Domain),
		" "); s != "192.0.2.1 192.0.2.2 a c b" {
		t.Error(s)
	}
}
