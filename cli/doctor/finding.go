package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/fairlead-cni/fairlead/trace"
)

// Diagnosed is a finding: one cause, with all affected containers.
type Diagnosed struct {
	ID       string `json:"id"`
	Section  string `json:"section"`
	Severity string `json:"severity"` // fault or warning
	Where    string `json:"where"`
	What     string `json:"what"`
	Why      string `json:"why"`
	trace.Advice
	Containers []affected `json:"containers,omitempty"`

	rank int
}

// affected is a container that a finding affects.
type affected struct {
	Container    string   `json:"container"` // network/id/interface
	Netns        string   `json:"netns,omitempty"`
	Details      []string `json:"details,omitempty"` // what differs between the containers
	trace.Advice          // for this container, if it is not the finding's
	Name         string   `json:"name,omitempty"` // NAMESPACE/POD, or podman's name

	short string // with the short ID
}

// The severities.
const (
	fault   = "fault"
	warning = "warning"
)

// Diagnosis is the answer of doctor.
type Diagnosis struct {
	OK       bool           `json:"ok"`
	Findings []*Diagnosed   `json:"findings"`
	Unseen   []string       `json:"unseen,omitempty"` // what could not be examined, and why
	Notes    []string       `json:"notes,omitempty"`
	Looked   map[string]int `json:"looked"` // how many networks and containers were examined

	mu sync.Mutex // probes run in parallel
}

func newDiagnosis() *Diagnosis { return &Diagnosis{Findings: []*Diagnosed{}, Looked: map[string]int{}} }

// add records a finding. Findings that differ only in the container become one. fill has pairs: a placeholder in the
// kind's advice and its value, or one of the words fix and look and the advice that replaces the kind's.
func (d *Diagnosis) add(id, where, what string, who []affected, fill ...string) {
	kinds := FindingKinds()
	i := slices.IndexFunc(kinds, func(k findingKind) bool { return k.ID == id })
	k := kinds[i]
	f := &Diagnosed{ID: id, Section: k.section, Severity: fault, Where: where, What: cmp.Or(what, k.What), Why: k.Why,
		rank: i}
	if k.Warning {
		f.Severity = warning
	}
	f.Advice = k.filled(fill)
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, g := range d.Findings {
		if g.ID == f.ID && g.Where == f.Where && g.What == f.What {
			g.hits(who, f.Advice)
			return
		}
	}
	f.hits(who, f.Advice)
	d.Findings = append(d.Findings, f)
}

// filled returns the advice of a kind with its placeholders filled in, or the other advice that fill gives.
func (k findingKind) filled(fill []string) trace.Advice {
	advice := trace.Advice{Fix: k.Fix}
	if k.Fix == "" {
		advice = trace.Advice{Look: k.Look}
	}
	for i := 0; i+1 < len(fill); i += 2 {
		switch value := fill[i+1]; fill[i] {
		case "fix":
			advice = trace.Advice{Fix: value}
		case "look":
			advice = trace.Advice{Look: value}
		default:
			advice.Fix = strings.ReplaceAll(advice.Fix, fill[i], value)
			advice.Look = strings.ReplaceAll(advice.Look, fill[i], value)
		}
	}
	return advice
}

// how returns advice as add takes it.
func how(a trace.Advice) []string {
	if a.Fix != "" {
		return []string{"fix", a.Fix}
	}
	return []string{"look", a.Look}
}

// hits adds affected containers, each once.
func (f *Diagnosed) hits(who []affected, advice trace.Advice) {
	for _, a := range who {
		if advice != f.Advice {
			a.Advice = advice
		}
		i := slices.IndexFunc(f.Containers, func(c affected) bool { return c.Container == a.Container })
		if i < 0 {
			f.Containers = append(f.Containers, a)
			continue
		}
		for _, line := range a.Details {
			if c := &f.Containers[i]; !slices.Contains(c.Details, line) {
				c.Details = append(c.Details, line)
			}
		}
	}
}

// Blind records what could not be examined, and why.
func (d *Diagnosis) Blind(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if line := fmt.Sprintf(format, args...); !slices.Contains(d.Unseen, line) {
		d.Unseen = append(d.Unseen, line)
	}
}

// remark records a note that is not a finding.
func (d *Diagnosis) remark(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.Notes = append(d.Notes, fmt.Sprintf(format, args...))
}

// has reports whether there is a finding id at where.
func (d *Diagnosis) has(id, where string) bool {
	return slices.ContainsFunc(d.Findings, func(f *Diagnosed) bool { return f.ID == id && f.Where == where })
}

// any reports whether there is a finding id.
func (d *Diagnosis) any(id string) bool {
	return slices.ContainsFunc(d.Findings, func(f *Diagnosed) bool { return f.ID == id })
}

// settle removes findings that are consequences of others, and sorts the rest.
func (d *Diagnosis) settle() {
	d.Findings = slices.DeleteFunc(d.Findings, func(f *Diagnosed) bool {
		switch f.ID {
		case "bridge-address-missing":
			return d.has("bridge-missing", f.Where) || d.has("bridge-down", f.Where)
		case "host-interface-detached":
			return d.has("bridge-missing", f.Where)
		case "network-not-ready":
			return d.any("state-unwritable") && unwritable(f.What)
		case "attachment-broken": // the plugin dhcp reports its leases there
			return d.any("state-unwritable") && unwritable(f.What) || strings.HasPrefix(f.What, asksDaemon) &&
				(d.any("dhcp-daemon-absent") || d.any("dhcp-daemon-silent")) ||
				strings.HasPrefix(f.What, "lease ") && strings.Contains(f.What, " is over") && d.any("dhcp-lease-lost")
		case "accepts-missing": // the evaluator names the chain
			return d.any("foreign-filter-drops")
		}
		return false
	})
	d.cut([]string{"address-duplicate"}, "container-address-missing", "container-route-missing",
		"container-state-differs", "container-path-blocked",
		"gateway-unreachable", "dns-unreachable", "address-unreachable")
	d.cut([]string{"dhcp-lease-lost"}, "container-address-missing", "container-route-missing")
	d.cut([]string{"container-interface-missing"}, "container-address-missing", "container-route-missing",
		"container-interface-changed", "gateway-unreachable", "dns-unreachable", "address-unreachable")
	d.below("container-interface-down", "container-address-missing", "container-route-missing",
		"container-path-blocked", "gateway-unreachable", "dns-unreachable", "address-unreachable")
	d.cut([]string{"container-address-missing"}, "container-route-missing", "gateway-unreachable", "dns-unreachable",
		"address-unreachable")
	d.cut([]string{"container-route-missing", "gateway-unreachable"}, "dns-unreachable", "address-unreachable")
	d.cut([]string{"bridge-missing", "bridge-down", "bridge-address-missing", "bridge-route-missing",
		"host-interface-down", "host-interface-missing", "host-interface-detached", "foreign-filter-drops",
		"host-path-blocked", "container-path-blocked", "subnet-overlap"},
		"gateway-unreachable", "dns-unreachable", "address-unreachable")
	for _, f := range d.Findings {
		slices.SortFunc(f.Containers, func(a, b affected) int { return cmp.Compare(a.Container, b.Container) })
		if f.Where == "container" && len(f.Containers) == 1 {
			f.Where = f.Containers[0].Container
		}
	}
	slices.SortStableFunc(d.Findings, func(a, b *Diagnosed) int { return cmp.Compare(a.rank, b.rank) })
	d.OK = len(d.Unseen) == 0 && !d.faulty()
}

// faulty reports whether a finding is a fault, and not just a warning.
func (d *Diagnosis) faulty() bool {
	return slices.ContainsFunc(d.Findings, func(f *Diagnosed) bool { return f.Severity == fault })
}

// below is cut, and writes what is cut to the cause as its consequence.
func (d *Diagnosis) below(cause string, follow ...string) {
	for _, f := range d.Findings {
		for _, g := range d.Findings {
			if f.ID != cause || !slices.Contains(follow, g.ID) {
				continue
			}
			for i, hit := range f.Containers {
				for _, c := range g.Containers {
					for _, line := range c.Details {
						if c.Container == hit.Container {
							f.Containers[i].Details = append(f.Containers[i].Details, "consequence: "+line)
						}
					}
				}
			}
		}
	}
	d.cut([]string{cause}, follow...)
}

// cut removes, from the findings in follow, the containers that a finding in causes affects.
func (d *Diagnosis) cut(causes []string, follow ...string) {
	hit := map[string]bool{}
	for _, f := range d.Findings {
		if slices.Contains(causes, f.ID) {
			for _, c := range f.Containers {
				hit[c.Container] = true
			}
		}
	}
	d.Findings = slices.DeleteFunc(d.Findings, func(f *Diagnosed) bool {
		if !slices.Contains(follow, f.ID) {
			return false
		}
		f.Containers = slices.DeleteFunc(f.Containers, func(c affected) bool { return hit[c.Container] })
		return len(f.Containers) == 0
	})
}
