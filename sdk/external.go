package sdk

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/spec"
)

// An External is a plugin of another program that answers what CNI has no verb for.
type External struct {
	Path  string
	Offer Offer

	call invoke.Call
}

// patience is how long a plugin of another program may take to say what it would do, or to mend what it did.
const patience = 30 * time.Second

// AskExternal asks the plugin at path what it offers beside CNI's verbs. It is nil for a plugin that offers nothing, or
// does not answer; of c the environment counts, now and later. Nothing but VERSION is sent.
func AskExternal(ctx context.Context, path string, c invoke.Call) *External {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	out, err := invoke.Version(ctx, invoke.Run, path, c, map[string]any{"fairlead": struct{}{}})
	var answer struct{ Fairlead Offer }
	if err != nil || json.Unmarshal(out, &answer) != nil || answer.Fairlead == (Offer{}) {
		return nil
	}
	return &External{path, answer.Fairlead, c}
}

// Plans reports whether x is there and answers FAIRLEAD_PLAN.
func (x *External) Plans() bool { return x != nil && x.Offer.Plan == 1 }

// Repairs reports whether x is there and answers FAIRLEAD_REPAIR.
func (x *External) Repairs() bool { return x != nil && x.Offer.Repair == 1 }

// Foresee asks what ADD of an attachment would do.
func (x *External) Foresee(ctx context.Context, o spec.Owner, netns string, args [][2]string,
	q PlanRequest) (*PlanAnswer, error) {
	a := new(PlanAnswer)
	return a, x.ask(ctx, verbPlan, o, netns, args, q, a)
}

// Repair has x mend what it made of an attachment. The caller keeps others away from the attachment.
func (x *External) Repair(ctx context.Context, o spec.Owner, netns string, args [][2]string,
	q RepairRequest) (*RepairAnswer, error) {
	a := new(RepairAnswer)
	return a, x.ask(ctx, verbRepair, o, netns, args, q, a)
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
