package agent

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/cluster/directory"
	"github.com/fairlead-cni/fairlead/internal/agentstatus"
	"github.com/fairlead-cni/fairlead/internal/contract"
)

// fixedMeter has received 100 bytes.
type fixedMeter struct{}

func (fixedMeter) Bytes() int64    { return 100 }
func (fixedMeter) Last() time.Time { return time.Unix(1000, 0) }

// An agent is alive while it compares, and ready when the node has what pods need. Its metrics are those of the status.
func TestMetrics(t *testing.T) {
	h := newHost(t, 1)
	h.agent.Meter = fixedMeter{}
	mux := h.agent.mux()
	get := func(path string) (int, string) {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		text, err := io.ReadAll(w.Result().Body)
		if err != nil {
			t.Fatal(err)
		}
		return w.Code, string(text)
	}
	says := func(when, path string, code int, want ...string) {
		t.Helper()
		got, text := get(path)
		for _, line := range want {
			if got != code || !strings.Contains(text, line) {
				t.Errorf("%s: %s: %d %s; want %d and %q", when, path, got, text, code, line)
			}
		}
	}
	const never, down = "the kernel was not compared", http.StatusServiceUnavailable
	says("before it runs", "/healthz", down, never)
	says("before it runs", "/readyz", down, "the device is not made yet")
	says("before it runs", "/metrics", http.StatusOK, "fairlead_agent_api_received_bytes_total 100\n")

	h.start()
	bare := node(1)
	bare.Prefixes = nil
	h.compared(bare, node(2))
	says("no podCIDR", "/healthz", http.StatusOK, "ok")
	says("no podCIDR", "/readyz", down, "the device is not made yet")

	contract.Host(t, h.w, "ip route add 10.244.3.0/24 dev up0 proto 99")
	h.compared(node(1), node(2), node(3))
	h.agent.SetPolicies(12, true)
	says("programmed", "/readyz", http.StatusOK, "ok")
	says("programmed", "/metrics", http.StatusOK, "fairlead_agent_nodes{way=\"vxlan\"} 1\n", "fairlead_agent_nodes{way=\"none\"} 1\n",
		"fairlead_agent_problems{kind=\"route-taken\"} 1\n", "fairlead_agent_network_policies 12\n",
		"fairlead_agent_last_comparison_timestamp_seconds ", "fairlead_agent_api_last_received_timestamp_seconds 1000\n",
		"# TYPE fairlead_agent_corrected_total counter\n", "process_resident_memory_bytes")
	if s := h.agent.Status(); s.Policies == nil || *s.Policies != 12 || s.API.Bytes != 100 {
		t.Errorf("%+v", s)
	}
	corrected := h.agent.counts.corrected.Load()
	if corrected != 7 { // of two nodes with two entries and two prefixes, all but the taken route
		t.Errorf("%d differences were corrected", corrected)
	}
	h.compared(node(1), node(2), node(3))
	if again := h.agent.counts.corrected.Load(); again != corrected {
		t.Errorf("a route that stays taken counts as corrected: %d, were %d", again, corrected)
	}
	h.agent.SetPolicies(0, false)
	if _, text := get("/metrics"); strings.Contains(text, "network_policies") || h.agent.Status().Policies != nil {
		t.Error("an unknown number is told")
	}

	h.stop()
	last := *h.agent.status.Load()
	if err := h.agent.alive(last.Compared.Add(healthy)); err != nil {
		t.Error(err)
	}
	if err := h.agent.alive(last.Compared.Add(healthy + time.Second)); err == nil {
		t.Error("an agent that compares no more is alive")
	}
}

// However many paths fail, 100 have a metric of their own, and all are counted.
func TestPathMetrics(t *testing.T) {
	a := &Agent{}
	s := agentstatus.Status{}
	for _, n := range thousand() {
		s.Nodes = append(s.Nodes, agentstatus.Node{Name: n.Name, Path: &agentstatus.Path{Agents: agentstatus.Lost}})
	}
	single, counted := 0, 0.0
	collector{a}.paths(s, func(name, help string, value float64, labels ...string) {
		switch name {
		case "path_failing":
			single++
		case "paths":
			counted += value
		}
	})
	if single != failingMost || counted != 1000 {
		t.Errorf("%d single ones, %v counted", single, counted)
	}
}

func thousand() (nodes []directory.Node) {
	for i := range 1000 {
		n := node(byte(i))
		n.Name = time.Duration(i).String()
		nodes = append(nodes, n)
	}
	return nodes
}

// The log says once why the source of the nodes does not answer, and again when the cause changes.
func TestFailureIsLoggedOnce(t *testing.T) {
	var log strings.Builder
	a := Agent{Log: slog.New(slog.NewTextHandler(&log, nil))}
	for _, cause := range []string{"refused", "refused", "timeout", "timeout"} {
		a.SetFailure(errors.New(cause))
	}
	if said := log.String(); strings.Count(said, "refused") != 1 || strings.Count(said, "timeout") != 1 {
		t.Error(said)
	}
}

// The bytes a minute are those between two samples that are a minute apart.
func TestBytesPerMinute(t *testing.T) {
	var c counts
	at := time.Unix(1000, 0)
	for _, sample := range []struct {
		after time.Duration
		bytes int64
		want  int64
	}{{0, 5000, 0}, {30 * time.Second, 5900, 0}, {time.Minute, 6000, 1000}, {90 * time.Second, 9000, 1000},
		{3 * time.Minute, 8000, 1000}, {4 * time.Minute, 8500, 500}} {
		c.sample(at.Add(sample.after), meterOf(sample.bytes))
		if c.perMinute != sample.want {
			t.Errorf("after %v: %d bytes a minute, want %d", sample.after, c.perMinute, sample.want)
		}
	}
}

type meterOf int64

func (m meterOf) Bytes() int64  { return int64(m) }
func (meterOf) Last() time.Time { return time.Time{} }
