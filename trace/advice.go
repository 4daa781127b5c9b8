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

// In is the advice as somebody on the host types it for the network namespace with this path; empty is the host's.
func (a Advice) In(netns string) Advice {
	enter := "nsenter --net=" + netns + " "
	switch {
	case netns == "":
	case a.Fix != "":
		a.Fix = enter + a.Fix
	case a.Look != "":
		a.Look = enter + a.Look
	}
	return a
}
