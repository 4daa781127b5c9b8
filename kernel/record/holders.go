package record

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// tries is how often a look looks for a holder of a lock that is held. In a fast queue, one may have it only between
// two.
const tries = 20

// A watch looks again and again at those who hold a lock that is waited for.
type watch struct {
	path   string
	file   unix.Stat_t
	unseen bool // they need not be seen
	bound  time.Duration

	since  time.Time // when the holders of the last look were seen first
	last   []string
	missed int               // looks that saw no holder, one after the other
	before map[string]string // what the last look saw of each stopped thread
}

// look returns an error if all holders have been stopped since the last look, if twice none was seen, or if the same
// have had the lock for longer than the bound.
func (w *watch) look() error {
	pids := w.holders()
	for n := 0; len(pids) == 0 && w.held(); n++ {
		if n == tries {
			w.missed++
			break
		}
		pids = w.holders()
	}
	if len(pids) > 0 && !slices.Equal(pids, w.last) {
		w.last, w.since = pids, time.Now()
	}
	if time.Since(w.since) > w.bound {
		holders := strings.Join(w.last, ", ")
		return fmt.Errorf("process %s has had it for %v: %w", holders, w.bound, context.DeadlineExceeded)
	}
	if len(pids) == 0 {
		if w.missed > 1 && !w.unseen {
			return ErrUnseen
		}
		return nil
	}
	w.missed = 0

	now := map[string]string{}
	stopped := 0
	for _, pid := range pids {
		if w.stopped(pid, now) {
			stopped++
		}
	}
	w.before = now
	if stopped == len(pids) {
		return errStopped{pids}
	}
	return nil
}

// held reports whether a process has the lock. Between one that gave it back and the next one that wakes up, none has
// it.
func (w *watch) held() bool {
	f, err := os.Open(w.path)
	if err != nil {
		return false
	}
	defer f.Close()
	var now unix.Stat_t
	same := unix.Fstat(int(f.Fd()), &now) == nil && now.Dev == w.file.Dev && now.Ino == w.file.Ino
	return same && errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// holders are the processes that /proc/locks names for the file. Those who wait have an arrow there.
func (w *watch) holders() (pids []string) {
	b, err := os.ReadFile("/proc/locks")
	if err != nil {
		return nil
	}
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(w.file.Dev), unix.Minor(w.file.Dev), w.file.Ino)
	for line := range strings.Lines(string(b)) {
		// 1: FLOCK ADVISORY WRITE 13069 00:43:28 0 EOF
		f := strings.Fields(line)
		if len(f) == 8 && f[1] == "FLOCK" && f[5] == file {
			pids = append(pids, f[4])
		}
	}
	return pids
}

// stopped reports whether a thread of a process is stopped, by a signal or a debugger, and has not run since the last
// look. It adds the stopped threads to now.
func (w *watch) stopped(pid string, now map[string]string) (since bool) {
	threads, err := filepath.Glob("/proc/" + pid + "/task/*/status")
	if err != nil {
		return false
	}
	for _, thread := range threads {
		b, err := os.ReadFile(thread)
		if err != nil {
			continue
		}
		seen, is := stoppedState(string(b))
		if !is {
			continue
		}
		now[thread] = seen
		since = since || w.before[thread] == seen
	}
	return since
}

// stoppedState returns how often a thread has been put on a processor, by its status in /proc, and whether it is
// stopped.
func stoppedState(status string) (switches string, is bool) {
	for line := range strings.Lines(status) {
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch key {
		case "State":
			is = strings.HasPrefix(value, "T") || strings.HasPrefix(value, "t")
		case "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches":
			switches += value + " "
		}
	}
	return switches, is
}
