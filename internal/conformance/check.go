// Package conformance holds CNI plugins and runtimes of any vendor to the clauses of the specification. It executes
// them as a runtime or as a plugin would, each check in a throw-away host, and looks at what they say and at what the
// kernel has.
package conformance

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/spec"
)

// A Kind is what a plugin does, and so which checks apply to it.
type Kind string

// The kinds of plugins, and the runtime.
const (
	Interface Kind = "interface" // makes an interface in the container
	Chained   Kind = "chained"   // changes an interface that another plugin made
	IPAM      Kind = "ipam"      // gives addresses to another plugin
	Meta      Kind = "meta"      // runs other plugins, which make the interface
	Runtime   Kind = "runtime"
)

// A Check holds a plugin or a runtime to one clause in one case.
type Check struct {
	ID       string // the clause, and the case: P12/twice
	Title    string // what is done, and what is expected
	Sentence string // of the specification
	Kinds    []Kind

	from spec.Version // the oldest version that it is about; empty is any
	run  func(*trial)
}

// Clause is the number of the check's clause in docs/clauses.md.
func (c Check) Clause() string {
	clause, _, _ := strings.Cut(c.ID, "/")
	return clause
}

// Checks returns all checks, in the order of the clauses.
func Checks() []Check {
	return slices.Concat(versionChecks(), formatChecks(), environmentChecks(), errorChecks(), addChecks(), delChecks(),
		checkChecks(), gcChecks(), delegationChecks(), chainedChecks(), capabilityChecks(), runtimeChecks(),
		attachmentChecks(), runtimeConfChecks(), overlapChecks())
}

// The sets of kinds that most checks are for.
func everyPlugin() []Kind { return []Kind{Interface, Chained, IPAM, Meta} }
func makers() []Kind      { return []Kind{Interface, Meta} }

// selects reports whether --only selects the check: by its clause, or by its whole ID.
func selects(only []string, c Check) bool {
	return len(only) == 0 || slices.Contains(only, c.ID) || slices.Contains(only, c.Clause())
}

// isCheck reports whether there is a check of that clause or ID.
func isCheck(id string) bool {
	return slices.ContainsFunc(Checks(), func(c Check) bool { return selects([]string{id}, c) })
}

// A Status is how a check ended.
type Status string

// The ways in which a check ends.
const (
	Pass  Status = "pass"
	Fail  Status = "fail"
	Skip  Status = "skip"  // it does not apply, and Reason says why
	Error Status = "error" // it could not be made
)

// An Outcome is the end of one check of one subject.
type Outcome struct {
	Check    string `json:"check"`
	Clause   string `json:"clause"`
	Title    string `json:"title"`
	Sentence string `json:"sentence"`
	Verdict
	Repeat string `json:"repeat"` // the command that makes the check again
}

// A Verdict is what a check says of its subject.
type Verdict struct {
	Status   Status `json:"status"`
	Expected string `json:"expected,omitempty"` // of Fail
	Seen     string `json:"seen,omitempty"`     // of Fail
	Reason   string `json:"reason,omitempty"`   // of Skip and Error
	Call     string `json:"call,omitempty"`     // the last call before the failure, for a shell
}

// A finding is a check that failed.
type finding struct{ expected, seen string }

func (f *finding) Error() string { return "expected " + f.expected + ", saw " + f.seen }

// differs is a finding; the format and its arguments are what was seen.
func differs(expected, format string, args ...any) error {
	return &finding{expected, fmt.Sprintf(format, args...)}
}

// An ending is what a check panics with to end before its last line, as a test does with FailNow.
type ending struct{ err error }

// ended makes a check, or a part of one, and returns the error that ended it.
func ended(part func()) (err error) {
	defer func() {
		switch e := recover().(type) {
		case nil:
		case ending:
			err = e.err
		default:
			panic(e)
		}
	}()
	part()
	return nil
}

// require ends the check with an error, if there is one.
func require(err error) {
	if err != nil {
		panic(ending{err})
	}
}

// must is a value, or ends the check with the error in its place.
func must[T any](value T, err error) T {
	require(err)
	return value
}

// expect ends the check as failed, unless what was expected is so.
func expect(so bool, expected, format string, args ...any) {
	if !so {
		require(differs(expected, format, args...))
	}
}

// expect is expect where the answer is what was seen.
func (a *answer) expect(so bool, expected string) { expect(so, expected, "%s", a) }

// applies ends the check as one that does not apply, unless it does.
func applies(so bool, otherwise string) {
	if !so {
		require(unfit(otherwise))
	}
}

// unfit is the reason why a check does not apply.
type unfit string

func (u unfit) Error() string { return string(u) }

// verdict is how a check ended that returned err.
func verdict(err error) (v Verdict) {
	var f *finding
	var u unfit
	switch {
	case err == nil:
		v.Status = Pass
	case errors.As(err, &f):
		v.Status, v.Expected, v.Seen = Fail, f.expected, f.seen
	case errors.As(err, &u):
		v.Status, v.Reason = Skip, string(u)
	default:
		v.Status, v.Reason = Error, err.Error()
	}
	return v
}
