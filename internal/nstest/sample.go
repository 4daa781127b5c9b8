package nstest

import (
	"os"
	"strconv"
	"testing"
)

// runVar is, in the environment, the number of a run of the tests, in which Sample has a part of the cases. caseVar is
// the one case that Sample has.
const (
	runVar  = "FAIRLEAD_RUN"
	caseVar = "FAIRLEAD_CASE"
)

// Sample calls try with the cases of an exhaustive test, which are numbered from 1, until try reports that there is no
// such case or the test fails. With FAIRLEAD_RUN in the environment it has one of so many parts of them: runs with
// successive numbers have them all, and each run has a case if there is one. It returns the last case that there was,
// or 0.
func Sample(t testing.TB, parts int, try func(n int) (there bool)) (last int) {
	t.Helper()
	if only, ok := number(t, caseVar, 1); ok {
		if !one(t, only, try) {
			t.Errorf("there is no case %d", only)
		}
		return only
	}

	first, step := 1, 1
	if run, ok := number(t, runVar, 0); ok {
		first, step = 1+run%parts, parts
	}
	for ; last == 0 && first > 0 && !t.Failed(); first /= 2 { // there may be fewer cases than parts
		for n := first; !t.Failed() && one(t, n, try); n += step {
			last = n
		}
	}
	return last
}

// Some is the elements of a list that Sample has in this run.
func Some[T any](t testing.TB, parts int, list []T) (some []T) {
	t.Helper()
	Sample(t, parts, func(n int) (there bool) {
		if there = n <= len(list); there {
			some = append(some, list[n-1])
		}
		return there
	})
	return some
}

// one tries a case, and says how to try it alone if it fails.
func one(t testing.TB, n int, try func(n int) bool) (there bool) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("case %d, which %s=%d go test -run '%s' has alone", n, caseVar, n, exactly(t.Name()))
		}
	}()
	return try(n)
}

// number is that of a variable of the environment, if it is set.
func number(t testing.TB, name string, least int) (n int, set bool) {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return 0, false
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least {
		t.Fatalf("%s=%s: want a number from %d", name, text, least)
	}
	return n, true
}
