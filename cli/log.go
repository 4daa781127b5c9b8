package cli

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// A later is a handler of logs that keeps them until what they would have interrupted is printed.
type later struct {
	mu    sync.Mutex
	lines []string
}

// logLater has what resources log said after the answer, once, as notes. It is for commands that print trees.
func (a *app) logLater() (say func()) {
	was, l := slog.Default(), &later{}
	slog.SetDefault(slog.New(l))
	return func() {
		slog.SetDefault(was)
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, line := range l.lines {
			a.note("%s", line)
		}
	}
}

func (l *later) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }
func (l *later) WithAttrs([]slog.Attr) slog.Handler               { return l }
func (l *later) WithGroup(string) slog.Handler                    { return l }

func (l *later) Handle(_ context.Context, r slog.Record) error {
	text := []string{r.Message}
	r.Attrs(func(a slog.Attr) bool {
		text = append(text, a.String())
		return true
	})
	line := strings.Join(text, ", ")
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Contains(l.lines, line) {
		l.lines = append(l.lines, line)
	}
	return nil
}

// told is a line of a plugin's log, as slog writes it, as this program says such things; any other line is as it is.
func told(line string) string {
	if strings.HasPrefix(line, "warning: ") { // of package attach
		return "fairlead: " + line
	}
	values, rest := map[string]string{}, line
	var more []string
	for rest != "" {
		key := ""
		if quoted, err := strconv.QuotedPrefix(rest); err == nil { // it has a space
			key, _ = strconv.Unquote(quoted)
			rest = rest[len(quoted):]
		}
		name, value, ok := strings.Cut(rest, "=")
		key += name
		if !ok || strings.ContainsAny(name, " \"") || values["level"] == "" && key != "level" {
			return line
		}
		if quoted, err := strconv.QuotedPrefix(value); err == nil {
			rest = strings.TrimPrefix(value[len(quoted):], " ")
			value, _ = strconv.Unquote(quoted)
		} else {
			value, rest, _ = strings.Cut(value, " ")
		}
		values[key] = value
		if key != "level" && key != "msg" && key != "network" && key != "plugin" {
			more = append(more, ", "+key+" "+value)
		}
	}
	text := "fairlead: "
	switch values["level"] {
	case "":
		return line
	case "WARN":
		text += "warning: "
	case "ERROR":
		text += "error: "
	}
	if values["network"] != "" {
		text += "network " + values["network"] + ": "
	}
	if values["plugin"] != "" {
		text += values["plugin"] + ": "
	}
	return text + values["msg"] + strings.Join(more, "")
}
