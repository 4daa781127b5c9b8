package trace

import (
	"encoding/json"
	"fmt"

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

// join adds to a trace what the other node says. What Live has seen stays the verdict.
func join(answer *trace.Answer, o *agentstatus.Onward) error {
	there := trace.Answer{Verdict: answer.Verdict, Why: answer.Why}
	for _, is := range o.Disagreements {
		h := trace.Hop{Place: "between this node and " + o.Node, Kind: "disagreement", Text: is.Text,
			State: trace.Passes}
		if is.Stops {
			h.State = trace.Stops
		}
		answer.Hops = append(answer.Hops, h)
	}
	switch {
	case o.Unanswered != "":
		there.Why = o.Unanswered + "; what is known from here: " + answer.Why
		answer.Hops = append(answer.Hops, trace.Hop{Node: o.Node, Place: "host", Kind: "note", Text: o.Unanswered,
			State: trace.Unknown})
	default:
		if err := json.Unmarshal(o.Trace, &there); err != nil {
			return fmt.Errorf("answer of node %s: %w", o.Node, err)
		}
		there.Why = o.Node + ": " + there.Why
		for _, h := range there.Hops {
			h.Node = o.Node
			answer.Hops = append(answer.Hops, h)
		}
	}
	for _, is := range o.Disagreements {
		if is.Stops {
			there.Verdict, there.Why = trace.Stops, is.Text
			break
		}
	}
	if answer.Seen != "" || answer.Verdict == trace.Unknown && there.Verdict == trace.Passes {
		return nil
	}
	answer.Verdict, answer.Why, answer.Advice = there.Verdict, there.Why, there.Advice.At(o.Node)
	return nil
}
