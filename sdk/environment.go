package sdk

import (
	"fmt"
	"io"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/calls"
	"github.com/fairlead-cni/fairlead/internal/extra"
	"github.com/fairlead-cni/fairlead/spec"
)

// An environment is what a runtime passes in addition to standard input (clause P1).
type environment struct {
	Command, ContainerID, Netns, IfName, Args, Path, Override string

	args  [][2]string
	stdin []byte

	here   bool      // this process is a runtime's
	vars   []string  // all variables
	stderr io.Writer // for that of what is executed

	setting func() (calls.Setting, error) // of the node, if it is read already; else nil
}

func (e environment) netnsOverride() bool {
	on, err := parseBool(e.Override)
	return err == nil && on
}

func parseBool(s string) (bool, error) {
	switch strings.ToLower(s) {
	case "1", "true":
		return true, nil
	case "0", "false", "":
		return false, nil
	}
	return false, fmt.Errorf("%q is neither true nor false", s)
}

// validate checks the variables that the verb needs and reports every bad one (clauses P2 to P4).
func (e *environment) validate() error {
	var bad []string
	need := func(name, value string, valid func(string) error) {
		if value == "" {
			bad = append(bad, name+" is missing")
		} else if valid != nil {
			if err := valid(value); err != nil {
				bad = append(bad, fmt.Sprintf("%s %q: %v", name, value, err))
			}
		}
	}
	switch e.Command {
	case "ADD", "CHECK":
		need("CNI_CONTAINERID", e.ContainerID, spec.ValidContainerID)
		need("CNI_NETNS", e.Netns, nil)
		need("CNI_IFNAME", e.IfName, spec.ValidIfName)
	case "DEL", extra.VerbPlan, extra.VerbRepair:
		need("CNI_CONTAINERID", e.ContainerID, spec.ValidContainerID)
		need("CNI_IFNAME", e.IfName, spec.ValidIfName)
	case "GC", "STATUS":
		e.ContainerID, e.Netns, e.IfName, e.Args = "", "", "", ""
	default:
		bad = append(bad, fmt.Sprintf("CNI_COMMAND %q: want ADD, DEL, CHECK, GC, STATUS or VERSION", e.Command))
	}
	args, err := spec.ParseArgs(e.Args)
	if err != nil && e.Command != "DEL" {
		bad = append(bad, err.Error())
	}
	e.args = args
	if len(bad) > 0 {
		return spec.Errorf(spec.CodeEnvironment, "%s", strings.Join(bad, "; "))
	}
	return nil
}
