// Package calls logs each call of a plugin in one line, in a file or in systemd's journal, and reads the lines back.
package calls

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// A Line describes one call of a plugin. The plugins of a chain, and an allocator in the same process, are steps of
// that line.
type Line struct {
	Time        time.Time `json:"time"`                  // when the call began
	Verb        string    `json:"verb"`                  // ADD, DEL, CHECK, GC or STATUS
	Plugin      string    `json:"plugin"`                // its type
	Network     string    `json:"network,omitempty"`     // its name
	Container   string    `json:"container,omitempty"`   // its ID; a GC and a STATUS have none
	IfName      string    `json:"ifname,omitempty"`      // the interface in the container
	Pod         string    `json:"pod,omitempty"`         // NAMESPACE/NAME, or podman's name, from CNI_ARGS
	Seconds     float64   `json:"seconds"`               // from reading the environment to the answer
	Steps       []Step    `json:"steps,omitempty"`       // those of over 1 ms, in the order in which they ended
	Code        int       `json:"code,omitempty"`        // of the error; 0: the call succeeded
	Error       string    `json:"error,omitempty"`       // its message and its details
	Traceparent string    `json:"traceparent,omitempty"` // W3C trace context, from TRACEPARENT
	Tracestate  string    `json:"tracestate,omitempty"`  // from TRACESTATE
}

// A Step is a part of a call. A later step may contain it.
type Step struct {
	Step    string  `json:"step"`
	Seconds float64 `json:"seconds"`
}

// Bounds of a line, in bytes of the text before it is escaped: all together is less than maxLine.
const (
	maxLine  = 32 << 10
	maxError = 2 << 10
	maxText  = 256
	maxSteps = 12
	maxStep  = 100
)

// shortStep is the minimum duration of a step that is logged.
const shortStep = time.Millisecond

// AddStep records a step, if it took long enough and the line has room.
func (l *Line) AddStep(took time.Duration, name func() string) {
	if took >= shortStep && len(l.Steps) < maxSteps {
		l.Steps = append(l.Steps, Step{name(), Seconds(took)})
	}
}

// Seconds returns a duration in seconds, to the microsecond.
func Seconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1e6 }

// Failed reports whether the call failed.
func (l *Line) Failed() bool { return l.Code != 0 || l.Error != "" }

// cut returns l with texts that are valid UTF-8 and of limited length.
func (l Line) cut() Line {
	for _, f := range []*string{&l.Verb, &l.Plugin, &l.Network, &l.Container, &l.IfName, &l.Pod} {
		*f = cutTo(*f, maxText)
	}
	l.Error = cutTo(l.Error, maxError)
	l.Steps = slices.Clone(l.Steps)
	for i := range l.Steps {
		l.Steps[i].Step = cutTo(l.Steps[i].Step, maxStep)
	}
	return l
}

func cutTo(s string, most int) string {
	if len(s) > most {
		s = s[:most-len("…")] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// A member is a member of a line's JSON object. Its value is text, or JSON.
type member struct {
	name, value string
	json        bool
}

// members returns the members of the line that are set. Package encoding/json would need 0.1 ms in each call to inspect
// the type.
func (l Line) members() []member {
	l = l.cut()
	all := []member{
		{"time", l.Time.Format(time.RFC3339Nano), false},
		{"verb", l.Verb, false},
		{"plugin", l.Plugin, false},
		{"network", l.Network, false},
		{"container", l.Container, false},
		{"ifname", l.IfName, false},
		{"pod", l.Pod, false},
		{"seconds", number(l.Seconds), true},
		{"steps", l.steps(), true},
		{"code", strconv.Itoa(l.Code), true},
		{"error", l.Error, false},
		{"traceparent", l.Traceparent, false},
		{"tracestate", l.Tracestate, false},
	}
	return slices.DeleteFunc(all, func(m member) bool { return m.value == "" || m.name == "code" && l.Code == 0 })
}

// steps returns the steps as JSON, or an empty string.
func (l Line) steps() string {
	if len(l.Steps) == 0 {
		return ""
	}
	var b []byte
	for _, s := range l.Steps {
		b = append(quoted(append(b, `,{"step":`...), s.Step), `,"seconds":`+number(s.Seconds)+"}"...)
	}
	return "[" + string(b[1:]) + "]"
}

func number(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// quoted appends text, which must be valid UTF-8, as a JSON string.
func quoted(b []byte, text string) []byte {
	b = append(b, '"')
	for i := range len(text) {
		switch c := text[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ':
			b = fmt.Appendf(b, `\u%04x`, c)
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}

// encode returns the line as it is written to a file.
func (l Line) encode() []byte {
	b := []byte{'{'}
	for i, m := range l.members() {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, '"'), m.name...), `":`...)
		if m.json {
			b = append(b, m.value...)
		} else {
			b = quoted(b, m.value)
		}
	}
	return append(b, "}\n"...)
}

// Summary returns a sentence about what happened.
func (l *Line) Summary() string {
	about := l.Network
	for _, part := range []string{l.Container, l.IfName} {
		if part != "" {
			about += "/" + part
		}
	}
	if l.Pod != "" {
		about += " (" + l.Pod + ")"
	}
	text := fmt.Sprintf("%s %s %s: %s", l.Verb, l.Plugin, about, took(l.Seconds))
	if l.Failed() {
		text += fmt.Sprintf(", code %d: %s", l.Code, l.Error)
	}
	return text
}

// took formats a duration for people.
func took(seconds float64) string {
	return strconv.FormatFloat(seconds*1000, 'f', 1, 64) + " ms"
}

// Took returns the duration of the step, for people.
func (s Step) Took() string { return took(s.Seconds) }

// Took returns the duration of the call, for people.
func (l *Line) Took() string { return took(l.Seconds) }

// Identifier is the SYSLOG_IDENTIFIER of the lines in the journal.
const Identifier = "fairlead"

// prefix begins the names of the fields of a line in the journal.
const prefix = "FAIRLEAD_"

// datagram returns the line in journald's format (systemd.io/JOURNAL_NATIVE_PROTOCOL). Each member is a field, such as
// FAIRLEAD_VERB; steps are JSON.
func (l Line) datagram() []byte {
	const info, failed = "6", "3"
	priority := info
	if l.Failed() {
		priority = failed
	}
	short := l.cut()
	b := field(nil, "MESSAGE", short.Summary())
	b = field(b, "PRIORITY", priority)
	b = field(b, "SYSLOG_IDENTIFIER", Identifier)
	for _, m := range l.members() {
		b = field(b, prefix+strings.ToUpper(m.name), m.value)
	}
	return b
}

// field appends a field. A value with a line break is preceded by its length.
func field(b []byte, name, value string) []byte {
	b = append(b, name...)
	if !strings.Contains(value, "\n") {
		return append(append(append(b, '='), value...), '\n')
	}
	b = binary.LittleEndian.AppendUint64(append(b, '\n'), uint64(len(value)))
	return append(append(b, value...), '\n')
}

// FromJournal returns the line in an entry printed by `journalctl -o json`, and the entry's cursor. Ok is false if the
// entry is not a line of this package.
func FromJournal(entry []byte) (l Line, cursor string, ok bool) {
	var fields map[string]any
	if json.Unmarshal(entry, &fields) != nil {
		return l, "", false
	}
	cursor, _ = fields["__CURSOR"].(string)
	doc := map[string]any{}
	for name, value := range fields {
		member, ours := strings.CutPrefix(name, prefix)
		text, is := value.(string)
		if !ours || !is {
			continue
		}
		switch member {
		case "SECONDS", "CODE", "STEPS":
			doc[strings.ToLower(member)] = json.RawMessage(text)
		default:
			doc[strings.ToLower(member)] = text
		}
	}
	b, err := json.Marshal(doc)
	ok = err == nil && json.Unmarshal(b, &l) == nil && l.Verb != ""
	return l, cursor, ok
}

// trace stores TRACEPARENT and TRACESTATE if they are valid (W3C Trace Context). Of later versions of the format, the
// part that version 00 defines is used.
func (l *Line) trace(parent, state string) {
	const version, id, span, flags = 2, 32, 16, 2
	parts := strings.SplitN(parent, "-", 5)
	hex := func(i, digits int) bool {
		return len(parts[i]) == digits && strings.Trim(parts[i], "0123456789abcdef") == ""
	}
	zero := func(i int) bool { return strings.Trim(parts[i], "0") == "" }
	if len(parts) < 4 || len(parent) > maxText || strings.ContainsFunc(parent, unprintable) ||
		!hex(0, version) || !hex(1, id) || !hex(2, span) || !hex(3, flags) ||
		parts[0] == "ff" || parts[0] == "00" && len(parts) > 4 || zero(1) || zero(2) {
		return
	}
	l.Traceparent = parent
	const most = 512
	if len(state) <= most && !strings.ContainsFunc(state, unprintable) {
		l.Tracestate = state
	}
}

func unprintable(r rune) bool { return r > unicode.MaxASCII || r != ' ' && !unicode.IsPrint(r) }
