package netconf

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/spec"
)

func TestParsePorts(t *testing.T) {
	for _, c := range []struct {
		text string
		want string // the mappings, or part of what is wrong
	}{
		{"8080:80", "8080:80/tcp"},
		{"8080:80/UDP", "8080:80/udp"},
		{"132:132/sctp", "132:132/sctp"},
		{"192.0.2.1:8080:80", "192.0.2.1:8080:80/tcp"},
		{"[2001:db8::1]:8080:80", "[2001:db8::1]:8080:80/tcp"},
		{"2001:db8::1:8080:80", "[2001:db8::1]:8080:80/tcp"},
		{"8000-8002:80-82/udp", "8000-8002:80-82/udp"},
		{"80", "give a port of the host and a port of the command"},
		{"", "give a port of the host and a port of the command"},
		{":80", `"" is not a port`},
		{"0:80", `"0" is not a port`},
		{"65536:80", `"65536" is not a port`},
		{"80:-1", `"" is not a port`},
		{"8001-8000:81-80", "ends before it begins"},
		{"8000-8001:80", "different lengths"},
		{"80:80/icmp", "not tcp, udp or sctp"},
		{"host:80:80", `"host" is not an IP address`},
		{"[fe80::1%eth0]:80:80", "is not an IP address"},
	} {
		ports, err := attached.ParsePorts(c.text)
		if got := fmt.Sprint(ports); err == nil && got != c.want {
			t.Errorf("%q: %s, want %s", c.text, got, c.want)
		}
		if err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(c.want, "/")) {
			t.Errorf("%q: %v, want %s", c.text, err, c.want)
		}
	}
}

// Ranges are for our own plugin; whoever else is to publish them gets each port.
func TestRangesForOthers(t *testing.T) {
	list := func(typ string) *Network {
		l, err := spec.ParseList([]byte(`{"cniVersion":"1.1.0","name":"n","plugins":[{"type":"` + typ + `","capabilities":{"portMappings":true}}]}`))
		if err != nil {
			t.Fatal(err)
		}
		return &Network{List: l}
	}
	dir := t.TempDir()
	t.Setenv("CNI_PATH", dir)
	m, err := attached.ParsePorts("8000-8001:80-81")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		typ, want string
		there     bool // as a program that is not ours
	}{
		{"portmap", "[8000-8001:80-81/tcp]", false},
		{"portmap", "[8000:80/tcp 8001:81/tcp]", true},
		{"cilium-cni", "[8000:80/tcp 8001:81/tcp]", false},
	} {
		if c.there {
			if err := os.WriteFile(filepath.Join(dir, c.typ), []byte("#!/bin/sh"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if got := fmt.Sprint(list(c.typ).Understood([]attached.PortMapping{m})); got != c.want {
			t.Errorf("%s: %s, want %s", c.typ, got, c.want)
		}
	}
}
