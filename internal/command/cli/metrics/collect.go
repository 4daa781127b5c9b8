package metrics

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/internal/calls"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/calllog"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/snapshot"
	"github.com/fairlead-cni/fairlead/internal/plainfile"
	"github.com/fairlead-cni/fairlead/internal/repair"
	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/kernel/record"
	"golang.org/x/sys/unix"
)

// collectMetrics looks at everything that there are metrics of.
func collectMetrics(ctx context.Context, a *app.App, drift bool) *samples {
	m := &samples{of: map[string][]sample{}}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		m.problem("%v", err)
		return m
	}
	defer null.Close()
	quiet := &app.App{Stderr: null} // what is noted would be noted by each run
	m.add("fairlead_build_info", 1, a.Version)
	s, err := snapshot.Read("")
	if err != nil {
		m.problem("%v", err)
		return m
	}
	defer s.Close()
	for _, p := range s.Unread {
		m.problem("%v", p)
	}
	attachments := byState{}
	for _, c := range s.All {
		attachments.none(c.Network)
		attachments[[2]string{c.Network, s.State(c)}]++
	}
	collectPools(ctx, quiet, m, attachments, s)
	attachments.add(m, "fairlead_attachments")
	collectCalls(ctx, m)
	collectRepair(m)
	if drift {
		collectDrift(ctx, quiet, m, s)
	}
	return m
}

// collectPools looks at the ranges and the leases of host-local. Of their networks there are attachments, if only none.
func collectPools(ctx context.Context, a *app.App, m *samples, attachments byState,
	s *snapshot.Snapshot) {
	pools, problems, err := netconf.Pools(ctx, a, "")
	if err != nil {
		m.problem("%v", err)
	}
	m.problems = append(m.problems, problems...)
	leases := byState{}
	for _, p := range pools {
		b, err := s.Leases(ctx, p)
		if err != nil {
			m.problem("%v", err)
			continue
		}
		for _, text := range b.Problems {
			m.problem("%s: %s", p.Network, text)
		}
		for _, u := range b.Uses {
			for name, n := range map[string]ipam.Count{"": u.Size, "used_": u.Used, "available_": u.Available} {
				v, _ := strconv.ParseFloat(n.String(), 64)
				m.add("fairlead_pool_"+name+"addresses", v, p.Network, u.Range)
			}
		}
		leases.none(p.Network)
		attachments.none(p.Network)
		for _, l := range b.Leases {
			leases[[2]string{p.Network, l.State}]++
		}
	}
	leases.add(m, "fairlead_leases")
}

// collectDrift counts the attachments that are not as they should be, of those that are looked at.
func collectDrift(ctx context.Context, a *app.App, m *samples, s *snapshot.Snapshot) {
	defer a.LogLater()()
	r := s.DryRepairer(s.All)
	report, err := r.Run(ctx)
	if err != nil {
		m.problem("what attachments should have: %v", err)
		return
	}
	drifted := map[string]int{}
	for _, f := range report.Findings {
		drifted[f.Owner.Network] += 0
		if f.State == repair.ToRepair || f.State == repair.Broken || f.State == repair.Offline {
			drifted[f.Owner.Network]++
		}
	}
	for network, n := range drifted {
		m.add("fairlead_attachments_drifted", float64(n), network)
	}
}

// A repairRecord is the last repair, as the file of that name keeps it until the next boot.
type repairRecord struct {
	Time        time.Time            `json:"time"`
	Seconds     float64              `json:"seconds"`
	OK          bool                 `json:"ok"`
	Attachments map[repair.State]int `json:"attachments"`
}

const repairFile = record.RunDir + "/repair.json"

// RecordRepair keeps what a repair came to, for metrics.
func RecordRepair(a *app.App, report *repair.Report) {
	r := repairRecord{time.Now().Add(-report.Took).UTC(), report.Took.Seconds(), report.OK(), map[repair.State]int{}}
	for _, f := range report.Findings {
		r.Attachments[f.State]++
	}
	doc, err := json.Marshal(r)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(repairFile), 0o700)
	}
	if err == nil {
		err = record.Replace(repairFile, doc, false) // of a kill, the next one takes what is left
	}
	if err != nil {
		a.Note("the result of this repair is not kept for `fairlead metrics`: %v", err)
	}
}

func collectRepair(m *samples) {
	doc, err := plainfile.Read(repairFile, plainfile.MaxSize)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var r repairRecord
	if err == nil {
		err = json.Unmarshal(doc, &r)
	}
	if err != nil {
		m.problem("the last repair: %v", err)
		return
	}
	ok := 0.0
	if r.OK {
		ok = 1
	}
	m.add("fairlead_last_repair_timestamp_seconds", float64(r.Time.UnixMilli())/1000)
	m.add("fairlead_last_repair_duration_seconds", r.Seconds)
	m.add("fairlead_last_repair_success", ok)
	for state, n := range r.Attachments {
		m.add("fairlead_last_repair_attachments", float64(n), string(state))
	}
}

// countFile keeps what was counted of the log of calls.
const countFile = record.RunDir + "/metrics.json"

// A callCount is what was counted of the log of calls since boot, and how far it was read.
type callCount struct {
	Path   string                         `json:"path,omitempty"` // of the file that At is a position in
	At     calls.Position                 `json:"at"`
	Cursor string                         `json:"cursor,omitempty"` // in the journal
	Calls  map[string]map[string]*callSum `json:"calls"`            // by verb and plugin
}

// A callSum is what calls of a verb and a plugin came to.
type callSum struct {
	Counts  []uint64       `json:"counts"` // by durationBounds
	Seconds float64        `json:"seconds"`
	Errors  map[int]uint64 `json:"errors,omitempty"` // by code
}

// durationBounds are those of the buckets, in seconds.
func durationBounds() []float64 {
	return []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
}

// add counts a call. A verb that there is none of, as an error of who called may name it, is "other".
func (t *callCount) add(l calls.Line) {
	bounds := durationBounds()
	if !strings.Contains(" ADD DEL CHECK GC STATUS ", " "+l.Verb+" ") {
		l.Verb = "other"
	}
	if t.Calls == nil {
		t.Calls = map[string]map[string]*callSum{}
	}
	if t.Calls[l.Verb] == nil {
		t.Calls[l.Verb] = map[string]*callSum{}
	}
	s := t.Calls[l.Verb][l.Plugin]
	if s == nil || len(s.Counts) != len(bounds)+1 { // else of another version of this program
		s = &callSum{Counts: make([]uint64, len(bounds)+1), Errors: map[int]uint64{}}
		t.Calls[l.Verb][l.Plugin] = s
	}
	i := 0
	for i < len(bounds) && l.Seconds > bounds[i] {
		i++
	}
	s.Counts[i]++
	s.Seconds += l.Seconds
	if l.Failed() {
		if s.Errors == nil {
			s.Errors = map[int]uint64{}
		}
		s.Errors[l.Code]++
	}
}

// collectCalls counts what is new in the log of calls.
func collectCalls(ctx context.Context, m *samples) {
	log, wrong := calllog.OpenCalls(false)
	if wrong != nil {
		m.problem("%v", wrong)
	}
	t, err := count(ctx, log)
	if err != nil {
		m.problem("the log of calls: %v", err)
	}
	for verb, plugins := range t.Calls {
		for plugin, s := range plugins {
			m.histogram("fairlead_call_duration_seconds", durationBounds(), s.Counts, s.Seconds, verb, plugin)
			for code, n := range s.Errors {
				m.add("fairlead_call_errors_total", float64(n), verb, plugin, strconv.Itoa(code))
			}
		}
	}
}

// count reads on from where the last count ended, and keeps the sum. One at a time does that.
func count(ctx context.Context, log calllog.CallLog) (t callCount, err error) {
	if err := os.MkdirAll(filepath.Dir(countFile), 0o700); err != nil {
		return t, err
	}
	f, err := os.OpenFile(countFile, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return t, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return t, errors.Join(err, fmt.Errorf("%s: it is %w: remove it", countFile, plainfile.ErrNotPlain))
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return t, err
	}
	doc, err := io.ReadAll(f)
	if err != nil {
		return t, err
	}
	if json.Unmarshal(doc, &t) != nil { // a kill tore it, and the counters begin anew
		t = callCount{}
	}
	boot, err := bootTime()
	errs := []error{err}
	add := func(l calls.Line) { // what was before may be gone the next time that it is counted
		if !l.Time.Before(boot) {
			t.add(l)
		}
	}
	if t.Path != log.File {
		t.Path, t.At = log.File, calls.Position{}
	}
	if log.File != "" {
		t.At, err = calls.Since(log.File, t.At, add)
		errs = append(errs, err)
	}
	if log.Journal != "" {
		place := "--boot"
		if t.Cursor != "" {
			place = "--after-cursor=" + t.Cursor
		}
		errs = append(errs, log.Ask(ctx, []string{place}, func(l calls.Line, cursor string) {
			t.Cursor = cursor
			add(l)
		}))
	}
	if doc, err = json.Marshal(t); err == nil {
		if _, err = f.WriteAt(doc, 0); err == nil {
			err = f.Truncate(int64(len(doc)))
		}
	}
	return t, errors.Join(append(errs, err)...)
}

// bootTime is when this host was booted.
func bootTime() (time.Time, error) {
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return time.Time{}, err
	}
	return time.Now().Add(-time.Duration(up.Nano())), nil
}
