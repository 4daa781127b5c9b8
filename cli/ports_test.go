package cli

import (
	"fmt"
	"strings"
	"testing"
)

func TestParsePorts(t *testing.T) {
	for _, c := range []struct {
		text string
		want string // the mappings, or part of what is wrong
	}{
		{"8080:80", "[8080:80/tcp]"},
		{"8080:80/UDP", "[8080:80/udp]"},
		{"132:132/sctp", "[132:132/sctp]"},
		{"192.0.2.1:8080:80", "[192.0.2.1:8080:80/tcp]"},
		{"[2001:db8::1]:8080:80", "[[2001:db8::1]:8080:80/tcp]"},
		{"2001:db8::1:8080:80", "[[2001:db8::1]:8080:80/tcp]"},
		{"8000-8002:80-82/udp", "[8000:80/udp 8001:81/udp 8002:82/udp]"},
		{"80", "a port of the host and one of the command are needed"},
		{"", "a port of the host and one of the command are needed"},
		{":80", `"" is no port`},
		{"0:80", `"0" is no port`},
		{"65536:80", `"65536" is no port`},
		{"80:-1", `"" is no port`},
		{"8001-8000:81-80", "runs backwards"},
		{"8000-8001:80", "differ in length"},
		{"80:80/icmp", "none of tcp, udp and sctp"},
		{"host:80:80", `"host" is no address`},
		{"[fe80::1%eth0]:80:80", "is no address"},
	} {
		ports, err := parsePorts(c.text)
		if got := fmt.Sprint(ports); err == nil && got != c.want {
			t.Errorf("%q: %s, want %s", c.text, got, c.want)
		}
		if err != nil && (!strings.Contains(err.Error(), c.want) || strings.HasPrefix(c.want, "[")) {
			t.Errorf("%q: %v, want %s", c.text, err, c.want)
		}
	}
}
