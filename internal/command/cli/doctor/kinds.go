package doctor

// ID is the name of a kind of finding.
type ID string

// A Kind is a kind of finding: a row of the tables in the files rows*.go. A new one is a row and a constant ID there.
type Kind struct {
	ID
	Warning bool   // containers have their network for now
	causes  causes // kinds that a finding of this kind is only the consequence of
	What    string
	Why     string
	// Words in capitals are placeholders.
	Fix  string // the command that corrects it
	Look string // where no command can: one that shows more, or what to change by hand

	section string
}

// severity returns the severity of findings of a kind.
func (k Kind) severity() string {
	if k.Warning {
		return warning
	}
	return fault
}

// causes are kinds of findings, and which of their findings another one is the consequence of.
type causes map[ID]scope

// A scope says to which findings a cause applies.
type scope int

const (
	here      scope = iota + 1 // of the same containers, or without any
	merged                     // here, and the lines of the consequence are told with the cause
	samePlace                  // at the same place
	anywhere
)

// The sections of the answer.
const (
	OnHost      = "host"
	onNetwork   = "networks"
	onContainer = "containers"
)

// FindingKinds returns all kinds, in the order in which doctor prints them.
func FindingKinds() (all []Kind) {
	for _, s := range []struct {
		name string
		rows []Kind
	}{{OnHost, hostKinds()}, {onNetwork, networkKinds()}, {onContainer, containerKinds()}} {
		for _, k := range s.rows {
			k.section = s.name
			all = append(all, k)
		}
	}
	return all
}
