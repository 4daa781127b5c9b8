package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/advice"
	"github.com/fairlead-cni/fairlead/internal/command/trace"
)

// Diagnosed is a finding: one cause, with all affected containers.
type Diagnosed struct {
	ID       ID     `json:"id"`
	Section  string `json:"section"`
	Severity string `json:"severity"` // fault or warning
	Where    string `json:"where"`
	What     string `json:"what"`
	Why      string `json:"why"`
	trace.Advice
	Containers []affected `json:"containers,omitempty"`

	rank   int
	causes causes // beside those of its kind
}

// affected is a container that a finding affects.
type affected struct {
	Container    string   `json:"container"` // network/id/interface
	Netns        string   `json:"netns,omitempty"`
	Details      []string `json:"details,omitempty"` // what differs between the containers
	trace.Advice          // for this container, if it is not the finding's
	Name         string   `json:"name,omitempty"` // NAMESPACE/POD, or podman's name

	short      string // with the short ID
	attachment attach.Cached
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
	Answers  []answered     `json:"answers,omitempty"` // of the address of --to
	Looked   map[string]int `json:"looked"`            // how many networks and containers were examined

	mu      sync.Mutex // probes run in parallel
	kinds   []Kind
	lacked  map[string][]string     // networks, by the kind of link that they need and the kernel lacks
	daemons map[string]daemonAnswer // by socket
}

func newDiagnosis() *Diagnosis {
	return &Diagnosis{Findings: []*Diagnosed{}, Looked: map[string]int{}, kinds: FindingKinds(),
		lacked: map[string][]string{}, daemons: map[string]daemonAnswer{}}
}

// add records a finding with the advice of its kind. fill has pairs: a placeholder in the advice, and its value.
func (d *Diagnosis) add(id ID, where, what string, who []affected, fill ...string) *Diagnosed {
	k := d.kinds[d.rank(id)]
	filled := strings.NewReplacer(fill...)
	how := look(filled.Replace(k.Look))
	switch {
	case k.Fix == advice.Remakes:
		how = advice.Remake(who[0].attachment)
	case k.Fix != "":
		how = fix(filled.Replace(k.Fix))
	}
	return d.addWith(id, where, what, who, how)
}

// addWith records a finding with other advice than that of its kind, and returns it. Findings that differ only in the
// container become one.
func (d *Diagnosis) addWith(id ID, where, what string, who []affected, how trace.Advice) *Diagnosed {
	d.mu.Lock()
	defer d.mu.Unlock()
	rank := d.rank(id)
	k := d.kinds[rank]
	what = cmp.Or(what, k.What)
	same := func(f *Diagnosed) bool { return f.ID == id && f.Where == where && f.What == what }
	if i := slices.IndexFunc(d.Findings, same); i >= 0 {
		d.Findings[i].hits(who, how)
		return d.Findings[i]
	}
	f := &Diagnosed{ID: id, Section: k.section, Severity: k.severity(), Where: where, What: what, Why: k.Why,
		Advice: how, rank: rank}
	f.hits(who, how)
	d.Findings = append(d.Findings, f)
	return f
}

// rank returns the place of a kind among all kinds.
func (d *Diagnosis) rank(id ID) int {
	return slices.IndexFunc(d.kinds, func(k Kind) bool { return k.ID == id })
}

// fix is the advice to run a command that corrects the fault.
func fix(command string) trace.Advice { return trace.Advice{Fix: command} }

// look is the advice where no command can correct the fault.
func look(text string) trace.Advice { return trace.Advice{Look: text} }

// hits adds affected containers, each once.
func (f *Diagnosed) hits(who []affected, how trace.Advice) {
	for _, a := range who {
		if how != f.Advice {
			a.Advice = how
		}
		i := slices.IndexFunc(f.Containers, func(c affected) bool { return c.Container == a.Container })
		if i < 0 {
			f.Containers = append(f.Containers, a)
			continue
		}
		c := &f.Containers[i]
		for _, line := range a.Details {
			if !slices.Contains(c.Details, line) {
				c.Details = append(c.Details, line)
			}
		}
	}
}

// Unexamined records what could not be examined, and why.
func (d *Diagnosis) Unexamined(format string, args ...any) {
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

// conclude removes findings that are consequences of others, and sorts the rest.
func (d *Diagnosis) conclude() {
	follows := map[*Diagnosed]func(affected) bool{}
	for _, f := range d.Findings {
		follows[f] = d.consequence(f)
	}
	d.Findings = slices.DeleteFunc(d.Findings, func(f *Diagnosed) bool {
		if len(f.Containers) == 0 {
			return follows[f](affected{})
		}
		f.Containers = slices.DeleteFunc(f.Containers, follows[f])
		return len(f.Containers) == 0
	})

	for _, f := range d.Findings {
		slices.SortFunc(f.Containers, func(a, b affected) int { return cmp.Compare(a.Container, b.Container) })
		if f.Where == "container" && len(f.Containers) == 1 {
			f.Where = f.Containers[0].Container
		}
	}
	slices.SortStableFunc(d.Findings, func(a, b *Diagnosed) int { return cmp.Compare(a.rank, b.rank) })
	d.OK = len(d.Unseen) == 0 && !d.faulty()
}

// consequence tells whether a finding is the consequence of another one for a container, or without any.
func (d *Diagnosis) consequence(f *Diagnosed) func(affected) bool {
	everywhere, of := false, map[string]bool{}
	for _, g := range d.Findings {
		scope := cmp.Or(f.causes[g.ID], d.kinds[f.rank].causes[g.ID])
		switch scope {
		case anywhere:
			everywhere = true
		case samePlace:
			everywhere = everywhere || f.Where == g.Where
		case here, merged:
			everywhere = everywhere || len(g.Containers) == 0
			for i, c := range g.Containers {
				of[c.Container] = true
				if scope == merged {
					g.Containers[i].tell(f)
				}
			}
		}
	}
	return func(c affected) bool { return everywhere || of[c.Container] }
}

// tell adds what a finding says of a container, as a consequence.
func (c *affected) tell(f *Diagnosed) {
	for _, o := range f.Containers {
		for _, line := range o.Details {
			if o.Container == c.Container {
				c.Details = append(c.Details, "consequence: "+line)
			}
		}
	}
}

// faulty reports whether a finding is a fault, and not just a warning.
func (d *Diagnosis) faulty() bool {
	return slices.ContainsFunc(d.Findings, func(f *Diagnosed) bool { return f.Severity == fault })
}
