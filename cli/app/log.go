package app

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
)

// A later is a handler of logs that keeps them until what they would have interrupted is printed.
type later struct {
	mu    sync.Mutex
	lines []string
}

// LogLater has what resources log said after the answer, once, as notes. It is for commands that print trees.
func (a *App) LogLater() (say func()) {
	was, l := slog.Default(), &later{}
	slog.SetDefault(slog.New(l))
	return func() {
		slog.SetDefault(was)
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, line := range l.lines {
			a.Note("%s", line)
		}
	}
}

func (l *later) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }

func (l *later) WithAttrs([]slog.Attr) slog.Handler { return l }

func (l *later) WithGroup(string) slog.Handler { return l }

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
