package sdk

import "testing"

// A version that names more than one state of the source is none: two programs that have it may differ.
func TestRelease(t *testing.T) {
	for version, want := range map[string]string{
		"v0.9.0": "v0.9.0", "v0.9.0-12-gabcdef0": "v0.9.0-12-gabcdef0", "v0.9.0-dirty": "", "v0.9.1-0.2026+dirty": "",
		"devel": "", "unknown": "",
	} {
		if got := release(version); got != want {
			t.Errorf("%q: %q, want %q", version, got, want)
		}
	}
}
