package app

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
)

// later is a slog handler that keeps the records until the answer is printed.
type later struct {
	mu    sync.Mutex
	lines []string
}

// LogLater holds back what resources log, for commands that print trees. say prints it as notes, each once.
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
