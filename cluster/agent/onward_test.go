package agent

import (
	"encoding/json"
	"strings"
	"testing"
)

// sensible is a question as an agent sends it.
const sensible = `{"packet":{"src":"10.244.1.2","dst":"10.244.2.2","proto":6,"port":80},"prefix":"10.244.1.0/24","way":{"link":"vx",` +
	`"via":"fe80::2","mtu":1450,"tunnel":{"name":"vx","local":"192.0.2.1","id":7,"port":8472,"mac":"02:00:00:00:00:0a","mtu":1450},` +
	`"mac":"02:00:00:00:00:0b","endpoint":"192.0.2.2"}}`

// A question that no agent sends is refused.
func TestQuestion(t *testing.T) {
	for _, c := range []struct {
		old, new string
		isNone   bool
	}{
		{"", "", false},
		{`"prefix":"10.244.1.0/24",`, "", false}, // of a host outside of the ranges
		{`"src":"10.244.1.2"`, `"src":""`, true},
		{`"dst":"10.244.2.2"`, `"dst":"fd00::2"`, true},
		{`"src":"10.244.1.2","dst":"10.244.2.2","proto":6,"port":80},"prefix":"10.244.1.0/24"`, `"proto":6,"port":80}`, true},
		{`10.244.1.0/24`, `10.244.3.0/24`, true},
		{`"local":"192.0.2.1"`, `"local":""`, true},
		{`"endpoint":"192.0.2.2"`, `"endpoint":"2001:db8::2"`, true},
	} {
		var q question
		if err := json.Unmarshal([]byte(strings.Replace(sensible, c.old, c.new, 1)), &q); err != nil {
			t.Fatal(err)
		}
		if err := q.err(); (err != nil) != c.isNone {
			t.Errorf("%s in the place of %s: %v", c.new, c.old, err)
		}
	}
}

// FuzzQuestion: a question of any content is refused, or is a packet that comes in.
func FuzzQuestion(f *testing.F) {
	f.Add(sensible)
	f.Add(`{"packet":{"src":"fd00::1","dst":"fd00::2","proto":58},"way":{"link":"eth0","via":"fe80::1"}}`)
	f.Fuzz(func(t *testing.T, text string) {
		var q question
		if json.Unmarshal([]byte(text), &q) != nil || q.err() != nil {
			return
		}
		asked := arrival{Packet: q.Packet, Way: q.Way, Local: q.Way.Endpoint}.question()
		if !asked.Src.IsValid() || (asked.Inner == nil) != (q.Way.Tunnel == nil) {
			t.Errorf("%s is %+v", text, asked)
		}
	})
}
