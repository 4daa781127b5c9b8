package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/internal/agentstatus"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// healthy is how long the last comparison may be ago. There is one every minute.
const healthy = 2 * every

// failingMost is how many nodes have a metric of their own, however many paths fail.
const failingMost = 100

// mux answers /metrics, /healthz and /readyz.
func (a *Agent) mux() *http.ServeMux {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(collector{a}, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(a.Log.Handler(), slog.LevelError), MaxRequestsInFlight: 4}))
	answer := func(w http.ResponseWriter, err error) {
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	}
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, a.alive(time.Now())) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { answer(w, a.ready()) })
	return mux
}

// alive returns why the agent does not do its work.
func (a *Agent) alive(now time.Time) error {
	last := a.status.Load()
	if last == nil {
		return errors.New("the kernel was not compared with what should be yet")
	}
	if age := now.Sub(last.Compared); age > healthy {
		return fmt.Errorf("the kernel was last compared with what should be %v ago", age.Round(time.Second))
	}
	return nil
}

// ready returns why the node has no way to others.
func (a *Agent) ready() error {
	last := a.status.Load()
	if last == nil || len(last.Devices) == 0 {
		return errors.New("the device is not made yet")
	}
	for _, p := range last.Problems {
		if p.Kind == agentstatus.NotGranted {
			return errors.New(p.Text)
		}
	}
	return nil
}

// ServeMetrics answers /metrics, /healthz and /readyz at an address, "HOST:PORT" or "unix:PATH", until ctx ends.
func (a *Agent) ServeMetrics(ctx context.Context, address string) error {
	var l net.Listener
	var err error
	if path, isPath := strings.CutPrefix(address, "unix:"); isPath {
		l, err = Listen(path)
	} else {
		l, err = net.Listen("tcp", address)
	}
	if err != nil {
		return fmt.Errorf("--metrics %s: %w", address, err)
	}
	go a.serve(ctx, l, a.mux())
	return nil
}

// A collector makes metrics of what the status says.
type collector struct{ a *Agent }

// Describe implements prometheus.Collector. Which metrics there are depends on what is known.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(metrics chan<- prometheus.Metric) {
	s := c.a.Status()
	emit := func(kind prometheus.ValueType, name, help string, value float64, labels ...string) {
		var names, values []string
		for i := 0; i+1 < len(labels); i += 2 {
			names, values = append(names, labels[i]), append(values, labels[i+1])
		}
		desc := prometheus.NewDesc("fairlead_agent_"+name, help, names, nil)
		metrics <- prometheus.MustNewConstMetric(desc, kind, value, values...)
	}
	gauge := func(name, help string, value float64, labels ...string) {
		emit(prometheus.GaugeValue, name, help, value, labels...)
	}
	counter := func(name, help string, value float64) { emit(prometheus.CounterValue, name, help, value) }

	gauge("build_info", "The program; the value is 1", 1, "version", s.Agent)
	for way, n := range countsBy(s.Nodes, func(n agentstatus.Node) string { return string(n.Way) }) {
		gauge("nodes", "Nodes of the cluster by the way to them: vxlan, direct, here, or none", float64(n), "way", way)
	}
	problems := map[agentstatus.Kind]int{}
	for _, kind := range agentstatus.Kinds() {
		problems[kind] = 0 // an alert asks for a value, not for absence
	}
	for _, p := range s.Problems {
		problems[p.Kind]++
	}
	for kind, n := range problems {
		gauge("problems", "What is not as it should be, by kind", float64(n), "kind", string(kind))
	}
	c.paths(s, gauge)
	counter("corrected_total", "Differences in the kernel that the agent corrected", float64(c.a.counts.corrected.Load()))
	if !s.Compared.IsZero() {
		gauge("last_comparison_timestamp_seconds", "When the kernel was last compared with what should be", seconds(s.Compared))
	}
	counter("api_received_bytes_total", "Bytes that the API server sent", float64(s.API.Bytes))
	if !s.API.Last.IsZero() {
		gauge("api_last_received_timestamp_seconds", "When the API server last sent anything", seconds(s.API.Last))
	}
	if s.Policies != nil {
		gauge("network_policies", "NetworkPolicy objects, which nothing enforces; absent if unknown", float64(*s.Policies))
	}
}

// paths are the metrics of paths.
func (collector) paths(s agentstatus.Status, gauge func(name, help string, value float64, labels ...string)) {
	failing := 0
	counts := map[string]int{}
	for _, n := range s.Nodes {
		if n.Path == nil {
			continue
		}
		state := n.Path.State()
		counts[string(state)]++
		if state == agentstatus.PathWhole || failing == failingMost {
			continue
		}
		failing++
		gauge("path_failing", "Nodes to which a test of the path fails, at most 100", 1, "node", n.Name, "state", string(state))
	}
	for state, n := range counts {
		gauge("paths", "Paths to nodes by the result of their last test", float64(n), "state", state)
	}
}

// countsBy counts nodes by what key says of them.
func countsBy(nodes []agentstatus.Node, key func(agentstatus.Node) string) map[string]int {
	counts := map[string]int{}
	for _, n := range nodes {
		counts[key(n)]++
	}
	return counts
}

func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }
