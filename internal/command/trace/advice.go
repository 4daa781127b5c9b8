package trace

// Advice says what a person can do about a fault. At most one of its fields is set.
type Advice struct {
	Fix  string `json:"fix,omitempty"`  // the command that corrects it
	Look string `json:"look,omitempty"` // where no command can: one that shows more, or what to change by hand
}

func fix(command string) Advice { return Advice{Fix: command} }

func look(text string) Advice { return Advice{Look: text} }

// IsZero reports whether nothing is advised.
func (a Advice) IsZero() bool { return a == Advice{} }

// In is the advice for the network namespace with this path, as it is typed on the host; empty is the host's.
func (a Advice) In(netns string) Advice {
	if a.Fix != "" {
		a.Fix = inside(netns, a.Fix)
	}
	if a.Look != "" {
		a.Look = inside(netns, a.Look)
	}
	return a
}

// inside is a command for the network namespace with this path.
func inside(netns, command string) string {
	if netns == "" {
		return command
	}
	return "nsenter --net=" + netns + " " + command
}

// At is the advice about another node, where its commands are to be typed.
func (a Advice) At(node string) Advice {
	if a.Fix+a.Look == "" {
		return a
	}
	return look("on node " + node + ": " + a.Fix + a.Look)
}
