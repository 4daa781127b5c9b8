package cluster

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/internal/agentstatus"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/term"
)

// listed is how many nodes are listed with those that have no problem.
const listed = 30

// printNodes prints a row for each node, those with a problem first, and how many there are of which sort.
func printNodes(a *app.App, nodes []agentstatus.Node, all bool) {
	var bad, good []agentstatus.Node
	counts := map[string]int{}
	for _, n := range nodes {
		state := pathState(n)
		counts[state]++
		if state == ok || state == untested || n.Way == agentstatus.Here {
			good = append(good, n)
		} else {
			bad = append(bad, n)
		}
	}
	shown := slices.Concat(bad, good)
	if !all && len(nodes) > listed {
		shown = bad
	}
	s := a.Style(a.Stdout)
	if len(shown) > 0 {
		t := term.Table{{"NODE", "WAY", "ENDPOINT", "MTU", "PATH", "TESTED", "SEEN", "PREFIXES"}}
		for _, n := range shown {
			t = append(t, []any{n.Name, styledWay(s, n.Way), endpoint(n), orDash(n.MTU), styledPath(s, n), tested(n),
				seen(n), join(n.Prefixes)})
		}
		a.Draw(t)
	}
	a.Print("%d nodes: %s\n", len(nodes), countsOf(counts))
}

// The states of paths that are no problem.
const (
	ok       = "ok"
	untested = "untested"
)

// pathState is the state of the path to a node in a few words.
func pathState(n agentstatus.Node) string {
	switch {
	case n.Way == agentstatus.Here:
		return "this node"
	case n.Way == agentstatus.None:
		return "no way"
	case n.Path == nil:
		return untested
	}
	state := n.Path.State()
	switch state {
	case agentstatus.PathWhole:
		return ok
	case agentstatus.Short:
		return strings.TrimSuffix(fmt.Sprint("short: ", shortest(n.Path)), ": 0")
	}
	return strings.ReplaceAll(string(state), "-", " ")
}

// shortest returns the length of the longest packet that passes in each family; zero: it is unknown.
func shortest(p *agentstatus.Path) (mtu int) {
	for _, in := range p.Inside {
		if in.MTU != 0 && (mtu == 0 || in.MTU < mtu) {
			mtu = in.MTU
		}
	}
	return mtu
}

// countsOf says how many nodes are in which state, most first.
func countsOf(counts map[string]int) string {
	var states []string
	for state := range counts {
		states = append(states, state)
	}
	slices.SortFunc(states, func(a, b string) int {
		if counts[a] != counts[b] {
			return counts[b] - counts[a]
		}
		return strings.Compare(a, b)
	})
	for i, state := range states {
		states[i] = fmt.Sprint(counts[state], " ", state)
	}
	return strings.Join(states, ", ")
}

func styledWay(s term.Style, w agentstatus.Way) term.Shown {
	if w == agentstatus.None {
		return s.Bad(string(w))
	}
	return s.Good(string(w))
}

func styledPath(s term.Style, n agentstatus.Node) any {
	switch state := pathState(n); {
	case n.Way == agentstatus.Here || n.Way == agentstatus.None || state == untested:
		return "-"
	case state == ok:
		return s.Good(state)
	default:
		return s.Bad(state)
	}
}

// tested says how long ago the path to a node was tested.
func tested(n agentstatus.Node) string {
	if n.Path == nil {
		return "-"
	}
	return ago(n.Path.Tested)
}

// seen says how long ago anything came from a node.
func seen(n agentstatus.Node) string {
	if n.Path == nil || n.Path.Seen.IsZero() {
		return "-"
	}
	return ago(n.Path.Seen)
}

func ago(t time.Time) string { return age(t) + " ago" }

// endpoint returns the address that packets to the node are sent to, or those it has.
func endpoint(n agentstatus.Node) string {
	if n.Endpoint.IsValid() {
		return n.Endpoint.String()
	}
	return join(n.Endpoints)
}

func join[T fmt.Stringer](all []T) string {
	var texts []string
	for _, v := range all {
		texts = append(texts, v.String())
	}
	if len(texts) == 0 {
		return "-"
	}
	return strings.Join(texts, ",")
}

func orDash(n int) any {
	if n == 0 {
		return "-"
	}
	return n
}

func orUnknown(name string) string {
	if name == "" {
		return "(unknown)"
	}
	return name
}
