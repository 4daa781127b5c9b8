package sdk

import (
	"context"
	"log/slog"

	"github.com/fairlead-cni/fairlead/calls"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
)

// begin begins the line of a call, if the setting wants one. VERSION is about nothing.
func (s *site) begin(p Plugin, e environment) {
	if e.Command == "VERSION" {
		return
	}
	line, err := calls.Begin(e.vars)
	if err != nil {
		slog.Warn("calls are not logged: " + err.Error())
	}
	if line == nil {
		return
	}
	line.Verb, line.Plugin, line.Container, line.IfName = e.Command, p.Name, e.ContainerID, e.IfName
	if args, err := spec.ParseArgs(e.Args); err == nil {
		line.Pod = spec.PodName(args)
	}
	s.line = line
}

// about completes the line by the configuration, as far as that can be read. The steps of what is done with the context
// become the line's.
func (s *site) about(ctx context.Context, conf *spec.Conf) context.Context {
	if s.line == nil {
		return ctx
	}
	if conf != nil {
		s.line.Network = conf.Name
	}
	return plan.Timing(ctx, s.line.Step)
}

// end writes the line.
func (s *site) end(failed error) {
	code, message := 0, ""
	if failed != nil && s.line != nil {
		doc := document(failed)
		code, message = int(doc.Code), doc.Error()
	}
	if err := s.line.End(code, message); err != nil {
		slog.Warn("this call cannot be logged, which does not fail it: " + err.Error())
	}
}

// named is a step by its name.
type named string

func (n named) String() string { return string(n) }
