package nstest

import (
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// inner makes the tests below whose names begin with TestInner do what they say.
const inner = "FAIRLEAD_TEST_INNER"

func TestMain(m *testing.M) { Main(m) }

func TestInnerHost(t *testing.T) {
	if err := os.WriteFile("/run/here", nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestInnerOtherHost(t *testing.T) {
	if _, err := os.Stat("/run/here"); err == nil {
		t.Error("another test's file is here")
	}
}

func TestInnerParts(t *testing.T) {
	for _, name := range []string{"one", "two words", "with/slash"} {
		Apart(t, name, func(t *testing.T) {
			t.Log("part")
			if _, err := os.Stat("/run/part"); err == nil {
				t.Error("another part's file is here")
			}
			if err := os.WriteFile("/run/part", nil, 0o600); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestInnerSkips(t *testing.T) { t.Skip("for want of nothing") }

func TestInnerFails(t *testing.T) {
	if strings.Contains(os.Getenv(inner), "fail") {
		t.Error("fails")
	}
}

func TestInnerPartFails(t *testing.T) {
	Apart(t, "sound", func(*testing.T) {})
	Apart(t, "bad", func(t *testing.T) {
		if strings.Contains(os.Getenv(inner), "fail") {
			t.Error("fails")
		}
	})
}

func TestInnerHangs(t *testing.T) {
	if strings.Contains(os.Getenv(inner), "hang") {
		<-make(chan int)
	}
}

// hostsRun runs the tests above in a process of its own, as `go test` does, and returns the last verdict on each.
func hostsRun(t *testing.T, do string, flags ...string) (verdicts map[string]string, out string, err error) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", append([]string{"-test.v=test2json", "-test.run=^TestInner"}, flags...)...)
	cmd.Env = append(os.Environ(), inner+"="+do, marker+"=", partsVar+"=", partVar+"=")
	b, err := cmd.CombinedOutput()
	convert := exec.Command("go", "tool", "test2json")
	convert.Stdin = strings.NewReader(string(b))
	events, cerr := convert.Output()
	if cerr != nil {
		t.Fatal(cerr)
	}
	verdicts = map[string]string{}
	for line := range strings.Lines(string(events)) {
		var e struct{ Action, Test string }
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if slices.Contains([]string{"pass", "fail", "skip"}, e.Action) {
			verdicts[e.Test] = e.Action
		}
	}
	return verdicts, string(b), err
}

// TestHosts: each test and each part has a host of its own, and none gets lost, whatever the flags are.
func TestHosts(t *testing.T) {
	want := map[string]string{"": "pass", "TestInnerHost": "pass", "TestInnerOtherHost": "pass", "TestInnerSkips": "skip",
		"TestInnerParts": "pass", "TestInnerParts/one": "pass", "TestInnerParts/two_words": "pass", "TestInnerParts/with/slash": "pass",
		"TestInnerFails": "pass", "TestInnerHangs": "pass", "TestInnerPartFails": "pass", "TestInnerPartFails/sound": "pass", "TestInnerPartFails/bad": "pass",
		"TestInnerSample": "pass", "TestInnerSample/walk": "pass"}
	got, out, err := hostsRun(t, "")
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for name, verdict := range want {
		if got[name] != verdict {
			t.Errorf("%q: %q, want %q\n%s", name, got[name], verdict, out)
		}
	}
	if len(got) != len(want) {
		t.Errorf("verdicts on %v", got)
	}
	if n := strings.Count(out, ": part\n"); n != 3 {
		t.Errorf("%d parts ran, want 3:\n%s", n, out)
	}

	got, out, err = hostsRun(t, "", "-test.skip=^TestInner(Fails|Parts)$")
	if err != nil || len(got) != len(want)-5 || got["TestInnerFails"] != "" || got["TestInnerOtherHost"] != "pass" {
		t.Errorf("without two: %v, %v\n%s", got, err, out)
	}

	if got, out, err := hostsRun(t, "", "-test.run=^TestInnerParts$/^two_words$"); err != nil || len(got) != 3 ||
		got["TestInnerParts/two_words"] != "pass" {
		t.Errorf("one part: %v, %v\n%s", got, err, out)
	}
}

// TestHostsFail: what fails makes all fail, wherever it is.
func TestHostsFail(t *testing.T) {
	got, out, err := hostsRun(t, "fail")
	if err == nil {
		t.Errorf("success:\n%s", out)
	}
	for name, want := range map[string]string{"": "fail", "TestInnerHost": "pass", "TestInnerFails": "fail",
		"TestInnerPartFails/sound": "pass", "TestInnerPartFails/bad": "fail"} {
		if got[name] != want {
			t.Errorf("%q: %q, want %q\n%s", name, got[name], want, out)
		}
	}
}

// TestHostsHang: a test that hangs is named when the time of all is over, and the others run meanwhile.
func TestHostsHang(t *testing.T) {
	got, out, err := hostsRun(t, "hang", "-test.timeout=20s")
	if err == nil {
		t.Errorf("success:\n%s", out)
	}
	if got["TestInnerHost"] != "pass" || !strings.Contains(out, "test timed out after ") ||
		!strings.Contains(out, "running tests:\n\t\tTestInnerHangs") {
		t.Errorf("%v\n%s", got, out)
	}
}
