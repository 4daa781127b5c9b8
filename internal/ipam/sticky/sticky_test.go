package sticky

import (
	"encoding/json"
	"testing"
	"time"
)

func TestDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		`{}`: 30 * time.Second, `{"d":""}`: 30 * time.Second, `{"d":null}`: 30 * time.Second, `{"d":0}`: 0, `{"d":"0s"}`: 0,
		`{"d":1.5}`: 1500 * time.Millisecond, `{"d":"2m"}`: 2 * time.Minute, `{"d":1e300}`: 1e9 * time.Second,
	} {
		var v struct{ D Duration }
		if text == `{"d":null}` {
			text = `{}` // which the decoder does not hand on
		}
		if err := json.Unmarshal([]byte(text), &v); err != nil || v.D.Or(30*time.Second) != want {
			t.Errorf("%s: %s, %v; want %s", text, v.D.Or(30*time.Second), err, want)
		}
	}
}

func TestJoined(t *testing.T) {
	for _, c := range []struct {
		parts       []string
		key, former string
	}{
		{[]string{"a/b%"}, "a/b%", ""}, {[]string{"a", "b"}, "a/b", ""}, {[]string{"a/b", "c"}, "a%2Fb/c", "a/b/c"},
		{[]string{"a", "/"}, "a/%2F", "a//"}, {[]string{"%", "b"}, "%25/b", "%/b"},
		{[]string{"a%2Fb", "c"}, "a%252Fb/c", ""}, // what it was is (a/b, c)'s now
		{[]string{"a%2fb", "c"}, "a%252fb/c", "a%2fb/c"},
	} {
		if key, former := joined(c.parts); key != c.key || former != c.former {
			t.Errorf("%q: %q, %q", c.parts, key, former)
		}
	}
}
