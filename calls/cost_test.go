package calls

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// A line costs less than 0.1 ms in a process that has just started, as a plugin is. It counts what is
// reached once: the machine has other things to do.
func TestCost(t *testing.T) {
	path := filepath.Join(t.TempDir(), "calls.log")
	best := time.Hour
	for n := 1; best > 100*time.Microsecond && !(nstest.Race && n > 10); n++ {
		if time.Now().After(nstest.Deadline(t)) {
			t.Fatalf("a line takes %v", best)
		}
		if err := start(t, "CALLS_COST="+path)(); err != nil {
			t.Fatal(err)
		}
		all := lines(t, path)
		if len(all) != 2*n {
			t.Fatalf("%d lines, want %d", len(all), 2*n)
		}
		took, err := time.ParseDuration(all[2*n-1].Error) // of the line before it, see costs
		if err != nil {
			t.Fatal(err)
		}
		best = min(best, took)
	}
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
