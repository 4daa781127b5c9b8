package spec

import (
	"errors"
	"testing"
)

// The message of an error begins with the whole path of what it is about.
func TestLocate(t *testing.T) {
	s, err := NewSieve([]byte(`{"plugins":[{"mtu":7}]}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ path, text, at, want string }{
		{"plugins[0]", "mtu: 7: want 68 or more", "plugins[0].mtu", "plugins[0].mtu: 7: want 68 or more"},
		{"plugins[0]", "master: is missing", "plugins[0]", "plugins[0].master: is missing"},
		{"plugins[0]", "gives no address", "plugins[0]", "plugins[0]: gives no address"},
		{"", "name: is missing", "", "name: is missing"},
	} {
		at, text := s.Locate(tc.path, errors.New(tc.text))
		if at.Path != tc.at || text != tc.want {
			t.Errorf("%s at %q: %s at %q, want %s at %q", tc.text, tc.path, text, at.Path, tc.want, tc.at)
		}
	}
}
