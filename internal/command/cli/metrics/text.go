package metrics

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/ipam"
)

// A metricKind is a metric that fairlead has.
type metricKind struct {
	name, kind string // kind: gauge, counter or histogram
	labels     string // with spaces between them
	help       string
}

// metricKinds is all of them, in the order in which they are printed.
func metricKinds() []metricKind {
	return []metricKind{
		{"fairlead_build_info", "gauge", "version", "The program that made these metrics; the value is 1"},
		{"fairlead_attachments", "gauge", "network state",
			"Attachments by state: alive, gone (the network namespace no longer exists) or unknown"},
		{"fairlead_attachments_drifted", "gauge", "network",
			"Attachments that differ from their plan, as fairlead repair --dry-run finds them; only with --drift"},
		{"fairlead_pool_addresses", "gauge", "network range", "Addresses of a range of host-local"},
		{"fairlead_pool_used_addresses", "gauge", "network range", "Addresses that are in use"},
		{"fairlead_pool_available_addresses", "gauge", "network range", "Addresses that the next containers can get"},
		{"fairlead_leases", "gauge", "network state",
			"Leases of host-local by the state of their container: alive, unknown, or gone (a leak: run fairlead gc " +
				"--gone)"},
		{"fairlead_call_duration_seconds", "histogram", "verb plugin",
			"Durations of plugin calls, from the log of calls"},
		{"fairlead_call_errors_total", "counter", "verb plugin code",
			"Plugin calls that failed, by error code, from the log of calls"},
		{"fairlead_last_repair_timestamp_seconds", "gauge", "", "Start of the last fairlead repair since boot"},
		{"fairlead_last_repair_duration_seconds", "gauge", "", "Duration of that repair"},
		{"fairlead_last_repair_success", "gauge", "", "1 if nothing was broken after that repair, else 0"},
		{"fairlead_last_repair_attachments", "gauge", "state", "Attachments by what that repair found or did"},
		{"fairlead_problems", "gauge", "", "Sources that could not be read for these metrics; stderr names them"},
	}
}

// samples are the values of metrics, by their names; what could not be seen is a problem.
type samples struct {
	of       map[string][]sample
	problems []string
}

// A sample is a value. Its labels are in the order of the metric's.
type sample struct {
	suffix string // _bucket, _sum or _count of a histogram
	labels []string
	le     string // of a bucket
	value  float64
}

func (m *samples) add(name string, value float64, labels ...string) {
	m.of[name] = append(m.of[name], sample{labels: labels, value: value})
}

// problem takes down what could not be seen.
func (m *samples) problem(format string, args ...any) {
	m.problems = append(m.problems, fmt.Sprintf(format, args...))
}

// histogram adds one. Counts are those of the buckets, not cumulated; the last one is that of what is above all bounds.
func (m *samples) histogram(name string, bounds []float64, counts []uint64, sum float64, labels ...string) {
	var total uint64
	for i, n := range counts {
		total += n
		le := "+Inf"
		if i < len(bounds) {
			le = number(bounds[i])
		}
		m.of[name] = append(m.of[name], sample{"_bucket", labels, le, float64(total)})
	}
	m.of[name] = append(m.of[name], sample{"_sum", labels, "", sum}, sample{"_count", labels, "", float64(total)})
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// text is all of it in the text format, version 0.0.4
// (https://prometheus.io/docs/instrumenting/exposition_formats/).
func (m *samples) text() []byte {
	var b bytes.Buffer
	m.add("fairlead_problems", float64(len(m.problems)))
	for _, kind := range metricKinds() {
		all := m.of[kind.name]
		if len(all) == 0 {
			continue
		}
		slices.SortStableFunc(all, func(a, b sample) int { return slices.Compare(a.labels, b.labels) })
		fmt.Fprintf(&b, "# HELP %s %s.\n# TYPE %[1]s %[3]s\n", kind.name, kind.help, kind.kind)
		names, known := strings.Fields(kind.labels), map[string]bool{}
		for _, s := range all {
			var pairs []string
			for i, name := range names {
				pairs = append(pairs, name+`="`+labelValue(s.labels[i])+`"`)
			}
			if s.le != "" {
				pairs = append(pairs, `le="`+s.le+`"`)
			}
			series := kind.name + s.suffix
			if len(pairs) > 0 {
				series += "{" + strings.Join(pairs, ",") + "}"
			}
			if !known[series] { // two files may define one network; twice the same series is a mistake
				b.WriteString(series + " " + number(s.value) + "\n")
			}
			known[series] = true
		}
	}
	return b.Bytes()
}

// labelValue is a text as it stands between the quotes of a label.
func labelValue(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	return strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(text)
}

// Page is docs/metrics.md.
func Page() []byte {
	b := bytes.NewBufferString(`<!-- Made by "make generate" from internal/command/cli/metrics/text.go. Do not edit. -->
# Metrics

` + "`fairlead metrics`" + ` prints metrics of a node's container networks in the text format of Prometheus:

` + "```" + `
fairlead metrics                                                   # to look at
fairlead metrics --textfile /var/lib/node_exporter/fairlead.prom   # for node_exporter, each minute
fairlead metrics --listen unix:/run/fairlead-metrics.sock          # HTTP on a socket, until a signal
curl --unix-socket /run/fairlead-metrics.sock http://fairlead/metrics
` + "```" + `

` + "`--textfile`" + ` replaces the file in one step. Its mode is 0644, because node_exporter runs as another user. Choose a file in the
directory that node_exporter has in ` + "`--collector.textfile.directory`" + `. The socket of ` + "`--listen`" + ` has mode 0600. If systemd
opened a socket for the command, the command serves that socket.

Durations and errors of calls need the [log of calls](log.md): set it to ` + "`all`" + ` for both, or to ` + "`errors`" + ` for errors
alone. They count calls since boot. The command keeps the counts in ` + "`" + countFile + "`" + `, so that all runs continue
them, and each run reads only new lines. If the log rotates twice between two runs, the lines of the first file are not counted.

The command reads the runtime's cache, leases and files. It sends no packet. It leaves out what it cannot read, names it on
stderr, counts it in ` + "`fairlead_problems`" + `, and exits with status 1.

| metric | type | labels | is |
|---|---|---|---|
`)
	for _, k := range metricKinds() {
		labels := ""
		if k.labels != "" {
			labels = "`" + strings.ReplaceAll(k.labels, " ", "`, `") + "`"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", k.name, k.kind, labels, k.help)
	}
	b.WriteString(`
## Alerts to begin with

` + "```" + `
# a range is nearly full
fairlead_pool_available_addresses / fairlead_pool_addresses < 0.05
# leases of dead containers stay
fairlead_leases{state="gone"} > 0
# calls fail, and not only for a passing reason
increase(fairlead_call_errors_total{code!="11"}[10m]) > 0
# the slowest of twenty ADDs takes longer than a second
histogram_quantile(0.95, sum by (le) (rate(fairlead_call_duration_seconds_bucket{verb="ADD"}[10m]))) > 1
# the last repair left something broken
fairlead_last_repair_success == 0
` + "```\n")
	return b.Bytes()
}

// byState counts what a list has in each state, for networks.
type byState map[[2]string]int

// none has every state of a network counted: a leak that is fixed is a 0.
func (c byState) none(network string) {
	for _, state := range []string{ipam.Alive, ipam.Gone, ipam.Unknown} {
		c[[2]string{network, state}] += 0
	}
}

func (c byState) add(m *samples, name string) {
	for key, n := range c {
		m.add(name, float64(n), key[0], key[1])
	}
}
