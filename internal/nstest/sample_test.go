package nstest

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// sampled are the cases that Sample has of so many, in parts.
func sampled(t *testing.T, cases, parts int) (tried []int) {
	t.Helper()
	last := Sample(t, parts, func(n int) bool {
		if n <= cases {
			tried = append(tried, n)
		}
		return n <= cases
	})
	if last != tried[len(tried)-1] {
		t.Errorf("the last of %v is %d", tried, last)
	}
	var list []int
	for n := range cases {
		list = append(list, n+1)
	}
	if some := Some(t, parts, list); !slices.Equal(some, tried) {
		t.Errorf("of a list there are %v, of cases %v", some, tried)
	}
	return tried
}

// TestSample: runs with successive numbers have each case, each of them has one at least, and without a number all are had.
func TestSample(t *testing.T) {
	for _, cases := range []int{1, 3, 8, 50} {
		var want []int
		for n := range cases {
			want = append(want, n+1)
		}
		t.Setenv(runVar, "")
		if got := sampled(t, cases, 8); !slices.Equal(got, want) {
			t.Errorf("of %d cases without a number there are %v", cases, got)
		}

		var got []int
		for run := range 8 {
			t.Setenv(runVar, strconv.Itoa(1000+run))
			part := sampled(t, cases, 8)
			if len(part) == 0 || len(part) > 1+cases/8 {
				t.Errorf("of %d cases, run %d has %v", cases, run, part)
			}
			got = append(got, part...)
		}
		slices.Sort(got)
		if got = slices.Compact(got); !slices.Equal(got, want) {
			t.Errorf("of %d cases, eight runs have %v", cases, got)
		}
	}

	t.Setenv(caseVar, "7")
	if got := sampled(t, 50, 8); !slices.Equal(got, []int{7}) {
		t.Errorf("case 7 alone is %v", got)
	}
}

func TestInnerSample(t *testing.T) {
	Apart(t, "walk", func(t *testing.T) {
		Sample(t, 4, func(n int) bool {
			t.Log("try", n)
			if n == 6 && strings.Contains(os.Getenv(inner), "sample") {
				t.Error("fails")
			}
			return n <= 20
		})
	})
}

// TestSampleFails: what fails names the case, and how to have it alone.
func TestSampleFails(t *testing.T) {
	t.Setenv(runVar, "17")
	_, out, err := hostsRun(t, "sample")
	const again = "FAIRLEAD_CASE=6 go test -run '^TestInnerSample$/^walk$' has alone"
	if err == nil || !strings.Contains(out, again) || strings.Contains(out, "try 10") {
		t.Errorf("a case that fails: %v\n%s", err, out)
	}
	t.Setenv(caseVar, "6")
	_, out, err = hostsRun(t, "sample", "-test.run=^TestInnerSample$/^walk$")
	if err == nil || strings.Count(out, "try") != 1 || !strings.Contains(out, "try 6") {
		t.Errorf("this case alone: %v\n%s", err, out)
	}
	t.Setenv(caseVar, "99")
	if _, out, err = hostsRun(t, "sample", "-test.run=^TestInnerSample$"); err == nil || !strings.Contains(out, "no case 99") {
		t.Errorf("a case that is not there: %v\n%s", err, out)
	}
}
