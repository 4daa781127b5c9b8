package calls

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// BenchmarkStarted is a line in a process that has just started, as a plugin is. The least time counts, because a machine
// has other things to do.
func BenchmarkStarted(b *testing.B) {
	path := filepath.Join(b.TempDir(), "calls.log")
	best := time.Hour
	for b.Loop() {
		if err := start(b, "CALLS_COST="+path)(); err != nil {
			b.Fatal(err)
		}
		all := lines(b, path)
		took, err := time.ParseDuration(all[len(all)-1].Error) // of the line before it, see costs
		if err != nil {
			b.Fatal(err)
		}
		best = min(best, took)
	}
	b.ReportMetric(float64(best.Microseconds()), "µs/line")
}

// costs writes a line as a plugin does, and then one that says how long that took.
func costs(path string) int {
	began := time.Now()
	c, err := Begin([]string{"FAIRLEAD_LOG=all," + path}, nil)
	if err != nil {
		return 1
	}
	c.Line = example()
	if c.End(11, "no address left") != nil {
		return 1
	}
	c.Line = Line{Verb: "COST", Error: time.Since(began).String()}
	if c.setting.Write(c.Line) != nil {
		return 1
	}
	return 0
}

func BenchmarkOff(b *testing.B) {
	for b.Loop() {
		if c, err := Begin(nil, nil); c != nil || err != nil {
			b.Fatal(c, err)
		}
	}
}

func BenchmarkFile(b *testing.B) {
	path := filepath.Join(b.TempDir(), "calls.log")
	for b.Loop() {
		c, err := Begin([]string{"FAIRLEAD_LOG=all," + path}, nil)
		if err != nil {
			b.Fatal(err)
		}
		c.Line = example()
		if err := c.End(0, ""); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkJournal(b *testing.B) {
	if err := os.MkdirAll(filepath.Dir(Socket), 0o755); err != nil {
		b.Fatal(err)
	}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: Socket, Net: "unixgram"})
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	go func() {
		for buf := make([]byte, 64<<10); ; {
			if _, err := conn.Read(buf); err != nil {
				return
			}
		}
	}()
	for b.Loop() {
		if err := (Setting{To: ToJournal}).Write(example()); err != nil {
			b.Fatal(err)
		}
	}
}
