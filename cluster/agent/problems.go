package agent

import (
	"errors"
	"fmt"
	"strings"

	"github.com/fairlead-cni/fairlead/cluster/directory"
	"github.com/fairlead-cni/fairlead/internal/agentstatus"
	"github.com/fairlead-cni/fairlead/resource/overlay"
	"github.com/fairlead-cni/fairlead/spec"
)

// problemOf says what a comparison could not do. Node is empty if it concerns no single one.
func problemOf(d spec.Difference) agentstatus.Problem {
	p := agentstatus.Problem{Kind: agentstatus.Other, Node: d.Object, Text: d.Error()}
	var taken overlay.TakenRoute
	var conflict directory.Conflict
	var occupied Occupied
	var missing Missing
	var apart NoCommonFamily
	var away NotOnLink
	var differ ModesDiffer
	var wrong WrongKey
	switch {
	case errors.As(d, &taken):
		p.Kind, p.Prefix, p.Link = agentstatus.RouteTaken, taken.Prefix, taken.Link
	case errors.As(d, &conflict):
		p.Kind, p.Node, p.Prefix = agentstatus.RangeTaken, conflict.Loser, conflict.Prefix
	case errors.As(d, &occupied):
		p.Kind, p.Node, p.Prefix = agentstatus.RangeTaken, occupied.Node, occupied.Prefix
	case errors.As(d, &apart):
		p.Kind, p.Node = agentstatus.NoWay, apart.Node
	case errors.As(d, &away):
		p.Kind, p.Node = agentstatus.NoWay, away.Node
	case errors.As(d, &differ):
		p.Kind, p.Node = agentstatus.NoWay, differ.Node
	case errors.As(d, &wrong):
		p.Kind, p.Node = agentstatus.NoWay, wrong.Node
	case errors.As(d, &missing):
		p.Kind = agentstatus.NotGranted
	case d.Object != "":
		p.Kind = agentstatus.NoWay
	}
	return p
}

// pathProblems says what tests of the path to a node found. Tunnel and agents are UDP ports.
func pathProblems(n agentstatus.Node, tunnel, agents uint16) (problems []agentstatus.Problem) {
	path := n.Path
	found := func(k agentstatus.Kind, format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		if path.Cause != "" {
			text += " (this host could not send: " + path.Cause + ")"
		}
		problems = append(problems, agentstatus.Problem{Kind: k, Node: n.Name, Text: text})
	}
	there, back, silent := familiesWith(path, agentstatus.LostThere), familiesWith(path, agentstatus.LostBack),
		familiesWith(path, agentstatus.Lost)
	what := "packets between pods"
	if n.Way == agentstatus.VXLAN || n.Way == agentstatus.WireGuard {
		what = fmt.Sprint("UDP ", tunnel)
	}
	switch {
	case silent == all && path.Agents == agentstatus.Lost:
		found(agentstatus.PathSilent, "node %s (%v) answers nothing, neither in the tunnel nor at UDP %d", n.Name, n.Endpoint,
			agents)
		return problems
	case silent != "":
		found(agentstatus.PathSilent, "node %s answers no packets to its pods%s", n.Name, of(silent))
	}
	if there != "" {
		found(agentstatus.PathLostThere, "%s to %s (%v) is dropped on the way there%s", what, n.Name, n.Endpoint, of(there))
	}
	if back != "" {
		found(agentstatus.PathLostBack, "%s from %s (%v) is dropped on the way back%s", what, n.Name, n.Endpoint, of(back))
	}
	for _, in := range path.Inside {
		if in.Small == agentstatus.Passed && in.UDP == agentstatus.LostThere {
			found(agentstatus.PathUDP, "node %s answers echoes, and datagrams to its pods do not arrive (%s): a packet filter "+
				"of %[1]s drops UDP %[3]d there, or a network card corrupts checksums (--tx-checksum off)", n.Name, in.Family,
				agents)
		}
	}
	problems = append(problems, shortPath(n)...)
	if path.Agents != agentstatus.Passed {
		direction := "does not answer"
		if path.Agents == agentstatus.LostThere {
			direction = "sends, and does not receive what this node sends"
		}
		found(agentstatus.AgentSilent, "the agent of node %s (%v) %s at UDP %d: let agents reach each other there, and "+
			"look whether it runs", n.Name, n.Endpoint, direction, agents)
	}
	return problems
}

// all stands for all families.
const all = "all"

// familiesWith returns the family whose small packets came to r, or all, or nothing.
func familiesWith(path *agentstatus.Path, r agentstatus.Result) string {
	var list []string
	for _, in := range path.Inside {
		if in.Small == r {
			list = append(list, in.Family)
		}
	}
	if len(list) == len(path.Inside) && len(list) > 0 {
		return all
	}
	return strings.Join(list, " and ")
}

func of(family string) string {
	if family == all {
		return ""
	}
	return ", if it carries " + family
}

// shortPath says which packets are too long for the path to a node.
func shortPath(n agentstatus.Node) (problems []agentstatus.Problem) {
	for _, in := range n.Path.Inside {
		if in.Small != agentstatus.Passed || in.Full == agentstatus.Passed {
			continue
		}
		text := fmt.Sprintf("node %s answers small packets, not %s bytes (%s)", n.Name, thousands(in.Size), in.Family)
		switch {
		case in.MTU != 0:
			text += fmt.Sprintf("; %s bytes pass, which its routes have as MTU", thousands(in.MTU))
		case in.Full == agentstatus.LostBack:
			text += "; they are lost on the way back"
		}
		problems = append(problems, agentstatus.Problem{Kind: agentstatus.PathShort, Node: n.Name, Size: in.Size, MTU: in.MTU,
			Text: text})
	}
	return problems
}

// thousands is a number of bytes as people read it.
func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d,%03d", n/1000, n%1000)
}
