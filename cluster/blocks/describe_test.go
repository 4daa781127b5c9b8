package blocks

import (
	"fmt"
	"strings"
)

// describe says what a step is about.
func (w *world) describe(v move) string {
	if int(v.i) >= len(w.machines) || v.kind == limbo || v.kind == bury || v.kind == expire {
		return fmt.Sprintf("%v %d", v.kind, v.i)
	}
	text := fmt.Sprintf("%v machine %d (node %s)", v.kind, v.i, nodeName(w.machines[v.i].node))
	if v.kind == cede || v.kind == reclaim {
		text += " to or of node " + nodeName(w.machines[v.j].node)
	}
	if v.kind == act || v.kind == apply || v.kind == lose {
		text += ": " + textOf(w.machines[v.i].agent.Next())
	}
	return text
}

// textOf is an action for people.
func textOf(a Action) string {
	var s []string
	switch a := a.(type) {
	case Save:
		return fmt.Sprintf("save epoch %d, nonces %v", a.Journal.Epoch, a.Journal.Nonces)
	case Publish:
		for _, h := range a.Holdings {
			s = append(s, fmt.Sprintf("%v:%b", h.Block, h.Parts))
		}
		return "publish [" + strings.Join(s, " ") + "]"
	case Read:
		return "read"
	case Txn:
		for _, c := range a.If {
			s = append(s, fmt.Sprintf("%v=%d", c.Key, c.Revision))
		}
		s = append(s, "→")
		for _, p := range a.Put {
			s = append(s, "put "+p.Key.String())
		}
		for _, k := range a.Delete {
			s = append(s, "delete "+k.String())
		}
		return strings.Join(s, " ")
	}
	return fmt.Sprint(a)
}
