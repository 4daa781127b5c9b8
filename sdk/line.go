package sdk

import (
	"context"
	"log/slog"

	"github.com/fairlead-cni/fairlead/internal/calls"
	"github.com/fairlead-cni/fairlead/internal/engine"
	"github.com/fairlead-cni/fairlead/spec"
)

// begin begins the log line of a call, if logging is configured. VERSION is not logged.
func (s *site) begin(p Plugin, e environment) {
	if e.Command == "VERSION" {
		return
	}
	line, err := calls.Begin(e.vars, e.setting)
	if err != nil {
		slog.Warn("calls are not logged: " + err.Error())
	}
	if line == nil {
		return
	}
	line.Verb, line.Plugin, line.Container, line.IfName = e.Command, p.Name, e.ContainerID, e.IfName
	if args, err := spec.ParseArgs(e.Args); err == nil {
		line.Pod = calls.PodName(args)
	}
	s.line = line
}

// about adds to the log line what the configuration says. Steps that run with the returned context are recorded in the
// line.
func (s *site) about(ctx context.Context, conf *spec.Conf) context.Context {
	if s.line == nil {
		return ctx
	}
	if conf != nil {
		s.line.Network = conf.Name
	}
	return engine.Timing(ctx, s.line.Step)
}

// end writes the log line.
func (s *site) end(failed error) {
	code, message := 0, ""
	if failed != nil && s.line != nil {
		doc := document(failed)
		code, message = int(doc.Code), doc.Error()
	}
	if err := s.line.End(code, message); err != nil {
		slog.Warn("this call is not logged: " + err.Error())
	}
}

// named is a step of the log line that is not a resource.
type named string

func (n named) String() string { return string(n) }
