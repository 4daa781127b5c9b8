package spelling

import "testing"

func TestNearest(t *testing.T) {
	among := []string{"bridge", "host-local", "isGateway", "mtu", "x"}
	for word, want := range map[string]string{"brigde": "bridge", "Bridge": "bridge", "hostlocal": "host-local",
		"isgatway": "isGateway", "mut": "mtu", "mtuu": "mtu",
		"vlan": "", "": "", "y": "", "completely": "", "macvlan": ""} {
		if got, ok := Nearest(word, among); got != want || ok != (want != "") {
			t.Errorf("%q: %q", word, got)
		}
	}
}
