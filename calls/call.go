package calls

import "time"

// A Call is a call that is going to be written down. The methods of nil do nothing.
type Call struct {
	Line
	setting Setting
}

// Begin begins the line of a call that found this environment; it is nil where the setting wants none. The error says
// what is wrong with the setting.
func Begin(environ []string) (*Call, error) {
	began := time.Now()
	s, err := Read(environ)
	if err != nil || !s.On {
		return nil, err
	}
	c := &Call{Line: Line{Time: began}, setting: s}
	c.trace(value(environ, "TRACEPARENT"), value(environ, "TRACESTATE"))
	return c, nil
}

// Step takes down a step, see [Line.AddStep].
func (c *Call) Step(took time.Duration, name func() string) {
	if c != nil {
		c.AddStep(took, name)
	}
}

// End writes the line, if the setting is about a call that ended so: code 0 without a message is
// success.
func (c *Call) End(code int, message string) error {
	if c == nil || c.setting.Errors && code == 0 && message == "" {
		return nil
	}
	c.Seconds, c.Code, c.Error = Seconds(time.Since(c.Time)), code, message
	c.Time = c.Time.UTC().Truncate(time.Microsecond)
	return c.setting.Write(c.Line)
}
