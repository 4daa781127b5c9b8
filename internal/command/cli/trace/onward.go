package trace

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/agentstatus"
	"github.com/fairlead-cni/fairlead/internal/command/cli/doctor"
	"github.com/fairlead-cni/fairlead/internal/command/trace"
)

// follow has another node of a cluster follow the packet, if it leaves for a container there.
func follow(d *doctor.Doctor, answer *trace.Answer) error {
	if answer.Left == nil || answer.Verdict == trace.Stops && answer.Seen == "" {
		return nil
	}
	left := answer.Left
	p := agentstatus.Packet{Src: left.Src, Dst: left.Dst, Proto: left.Proto, Port: left.DstPort}
	network := doctor.Elsewhere(p.Dst)
	if network == "" {
		return nil
	}
	o, err := agentstatus.Follow(d.Ctx, network, p)
	if err != nil {
		o = &agentstatus.Onward{Unanswered: fmt.Sprintf("no other node was asked: %v", err)}
	}
	return join(answer, o)
}

// join adds to a trace what the other node says, and takes its verdict. What Live has seen stays the verdict.
func join(answer *trace.Answer, o *agentstatus.Onward) error {
	here := *answer
	var stops []string // disagreements because of which the packet does not arrive
	for _, is := range o.Disagreements {
		h := trace.Hop{Place: "between this node and " + o.Node, Kind: "disagreement", Text: is.Text,
			State: trace.Passes}
		if is.Stops {
			h.State, stops = trace.Stops, append(stops, is.Text)
		}
		answer.Hops = append(answer.Hops, h)
	}
	var there trace.Answer
	if o.Unanswered != "" {
		answer.Hops = append(answer.Hops, trace.Hop{Node: o.Node, Place: "host", Kind: "note", Text: o.Unanswered,
			State: trace.Unknown})
	} else if err := json.Unmarshal(o.Trace, &there); err != nil {
		return fmt.Errorf("answer of node %s: %w", o.Node, err)
	}
	for _, h := range there.Hops {
		h.Node = o.Node
		answer.Hops = append(answer.Hops, h)
	}
	switch {
	case answer.Seen != "":
	case len(stops) > 0:
		answer.Verdict, answer.Why = trace.Stops, stops[0]
		answer.Advice = trace.Advice{Look: "fairlead cluster status, on both nodes"}
	case o.Unanswered != "":
		answer.Why = o.Unanswered + "; what is known from here: " + answer.Why
	case there.Verdict != trace.Passes || !doubts(here):
		answer.Verdict, answer.Why, answer.Advice = there.Verdict, o.Node+": "+there.Why, there.Advice.At(o.Node)
	}
	return nil
}

// doubts reports whether a trace is unknown, and not only whether a neighbour answers: the other agent's answer came
// from there.
func doubts(answer trace.Answer) bool {
	isUnknown := func(h trace.Hop) bool { return h.State == trace.Unknown && h.Kind != "neighbour" }
	return answer.Verdict == trace.Unknown && slices.ContainsFunc(answer.Hops, isUnknown)
}
