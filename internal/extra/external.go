package extra

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/spec"
)

// An External is a plugin of another program that answers extra verbs.
type External struct {
	Path  string
	Offer Offer

	call invoke.Call
}

// patience limits how long a plugin of another program may take to answer an extra verb.
const patience = 30 * time.Second

// Ask asks the plugin at path, by VERSION alone, which extra verbs it offers. It returns nil for a plugin that
// offers none or does not answer. Only the environment of c is used, for this call and later ones.
func Ask(ctx context.Context, path string, c invoke.Call) *External {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	out, err := invoke.Version(ctx, invoke.Run, path, c, map[string]any{"fairlead": struct{}{}})
	var answer struct{ Fairlead Offer }
	if err != nil || json.Unmarshal(out, &answer) != nil || answer.Fairlead == (Offer{}) {
		return nil
	}
	return &External{path, answer.Fairlead, c}
}

// Plans reports whether x is not nil and answers FAIRLEAD_PLAN.
func (x *External) Plans() bool { return x != nil && x.Offer.Plan == 1 }

// Repairs reports whether x is not nil and answers FAIRLEAD_REPAIR.
func (x *External) Repairs() bool { return x != nil && x.Offer.Repair == 1 }

// Foresee asks x what ADD of an attachment would do.
func (x *External) Foresee(ctx context.Context, o spec.Owner, netns string, args [][2]string,
	q PlanRequest) (*PlanAnswer, error) {
	a := new(PlanAnswer)
	return a, x.ask(ctx, VerbPlan, o, netns, args, q, a)
}

// Repair lets x restore what it made for an attachment. The caller must hold the lock of the attachment.
func (x *External) Repair(ctx context.Context, o spec.Owner, netns string, args [][2]string,
	q RepairRequest) (*RepairAnswer, error) {
	a := new(RepairAnswer)
	return a, x.ask(ctx, VerbRepair, o, netns, args, q, a)
}

func (x *External) ask(ctx context.Context, verb string, o spec.Owner, netns string, args [][2]string,
	question, answer any) (err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c := x.call
	c.Command, c.Network, c.ContainerID, c.IfName, c.Netns = verb, o.Network, o.ContainerID, o.IfName, netns
	if c.Args, err = spec.FormatArgs(args); err != nil {
		return err
	}
	if c.Stdin, err = json.Marshal(question); err != nil {
		return err
	}
	out, err := invoke.Run(ctx, x.Path, c)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(out, answer); err != nil {
		return fmt.Errorf("%s: decode the answer to %s: %w", x.Path, verb, err)
	}
	return nil
}
