package metrics

import (
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/calls"
	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// exposition is a text of Prometheus, read strictly (https://prometheus.io/docs/instrumenting/exposition_formats/): the
// values by their series. Each metric has HELP and TYPE before it, stands once and in one piece, and no series stands
// twice.
func exposition(t *testing.T, text string) map[string]float64 {
	t.Helper()
	series, done, current, kind := map[string]float64{}, map[string]bool{}, "", ""
	line := regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[a-zA-Z_]\w*="(?:[^"\\\n]|\\[\\"n])*"(?:,[a-zA-Z_]\w*="(?:[^"\\\n]|\\[\\"n])*")*\})? (\S+)$`)
	for row := range strings.Lines(text) {
		row, ended := strings.CutSuffix(row, "\n")
		if !ended {
			t.Errorf("%q has no end", row)
		}
		if help, ok := strings.CutPrefix(row, "# HELP "); ok {
			current, _, _ = strings.Cut(help, " ")
			if kind = ""; done[current] {
				t.Errorf("%s stands twice", current)
			}
			done[current] = true
			continue
		}
		if typed, ok := strings.CutPrefix(row, "# TYPE "); ok {
			if name, is, _ := strings.Cut(typed, " "); name == current {
				kind = is
			}
			continue
		}
		m := line.FindStringSubmatch(row)
		if m == nil {
			t.Errorf("%q is no sample", row)
			continue
		}
		name := m[1]
		if kind == "histogram" {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				name = strings.TrimSuffix(name, suffix)
			}
		}
		if name != current || kind == "" || kind == "counter" != strings.HasSuffix(name, "_total") {
			t.Errorf("%q stands below %s of type %q", row, current, kind)
		}
		v, err := strconv.ParseFloat(m[3], 64)
		if _, twice := series[m[1]+m[2]]; twice || err != nil {
			t.Errorf("%q: %v, or it stands twice", row, err)
		}
		series[m[1]+m[2]] = v
	}
	return series
}

// Whatever labels say, the text can be read, and histograms add up.
func TestMetricsText(t *testing.T) {
	m := &samples{of: map[string][]sample{}}
	m.add("fairlead_attachments", 3, "a\"b\\c\nd\xff", "alive")
	m.add("fairlead_attachments", 4, "{x=\"y\"}", "gone")
	m.add("fairlead_attachments", 5, "{x=\"y\"}", "gone")
	m.add("fairlead_pool_addresses", 1.8446744073709552e19, "six", "fd00::/64")
	var c callCount
	for _, l := range []calls.Line{
		{Verb: "ADD", Plugin: "bridge", Seconds: 0.001}, {Verb: "ADD", Plugin: "bridge", Seconds: 0.0011, Code: 11},
		{Verb: "ADD", Plugin: "bridge", Seconds: 1000, Error: "without a code"}, {Verb: "x\"", Plugin: "vlan", Code: 4},
	} {
		c.add(l)
	}
	for verb, plugins := range c.Calls {
		for plugin, s := range plugins {
			m.histogram("fairlead_call_duration_seconds", durationBounds(), s.Counts, s.Seconds, verb, plugin)
			for code, n := range s.Errors {
				m.add("fairlead_call_errors_total", float64(n), verb, plugin, strconv.Itoa(code))
			}
		}
	}
	m.problem("one")
	got := exposition(t, string(m.text()))
	for series, want := range map[string]float64{
		`fairlead_attachments{network="a\"b\\c\nd` + "\uFFFD" + `",state="alive"}`:      3,
		`fairlead_attachments{network="{x=\"y\"}",state="gone"}`:                        4,
		`fairlead_pool_addresses{network="six",range="fd00::/64"}`:                      1.8446744073709552e19,
		`fairlead_call_duration_seconds_bucket{verb="ADD",plugin="bridge",le="0.001"}`:  1,
		`fairlead_call_duration_seconds_bucket{verb="ADD",plugin="bridge",le="0.0025"}`: 2,
		`fairlead_call_duration_seconds_bucket{verb="ADD",plugin="bridge",le="60"}`:     2,
		`fairlead_call_duration_seconds_bucket{verb="ADD",plugin="bridge",le="+Inf"}`:   3,
		`fairlead_call_duration_seconds_count{verb="ADD",plugin="bridge"}`:              3,
		`fairlead_call_duration_seconds_sum{verb="ADD",plugin="bridge"}`:                1000.0021,
		`fairlead_call_errors_total{verb="ADD",plugin="bridge",code="11"}`:              1,
		`fairlead_call_errors_total{verb="ADD",plugin="bridge",code="0"}`:               1,
		`fairlead_call_errors_total{verb="other",plugin="vlan",code="4"}`:               1,
		`fairlead_problems`: 1,
	} {
		if v, ok := got[series]; !ok || v != want {
			t.Errorf("%s is %v, want %v", series, v, want)
		}
	}
	for _, k := range metricKinds() {
		if strings.HasSuffix(k.help, ".") || strings.ContainsAny(k.help, "\\\n|") {
			t.Errorf("%s: help %q", k.name, k.help)
		}
	}
}

// What is no request for metrics gets none, and a client that says nothing is not waited for without an end.
func TestMetricsHTTP(t *testing.T) {
	for request, want := range map[string]string{
		"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n": "HTTP/1.1 200 OK",
		"GET /?a=b HTTP/1.0\r\n\r\n":               "HTTP/1.1 200 OK",
		"HEAD /metrics HTTP/1.1\r\n\r\n":           "HTTP/1.1 200 OK",
		"GET /other HTTP/1.1\r\n\r\n":              "HTTP/1.1 404 Not Found",
		"POST /metrics HTTP/1.1\r\n\r\n":           "HTTP/1.1 405 Method Not Allowed",
		"\r\n":                                     "HTTP/1.1 405 Method Not Allowed",
		"GET /" + strings.Repeat("x", 32<<10):      "",
		"GET /metrics HTTP/1.1\r\nHost: no end":    "",
	} {
		here, there := net.Pipe()
		go func() {
			here.SetDeadline(nstest.Deadline(t))
			io.WriteString(here, request)
			if want == "" {
				here.Close()
			}
		}()
		failed := make(chan error, 1)
		go func() {
			failed <- answerHTTP(there, func() []byte { return []byte("fairlead_problems 0\n") })
			there.Close()
		}()
		answer, _ := io.ReadAll(here)
		head, body, _ := strings.Cut(string(answer), "\r\n\r\n")
		if err := <-failed; !strings.HasPrefix(head, want) || (err == nil) != (want != "") ||
			(body != "") != (strings.HasPrefix(request, "GET") && strings.Contains(want, "200")) {
			t.Errorf("%.40q: %q %q, %v", request, head, body, err)
		}
	}
}
