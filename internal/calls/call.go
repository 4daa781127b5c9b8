package calls

import "time"

// A Call is a call in progress that will be logged. The methods of a nil Call do nothing.
type Call struct {
	Line
	setting Setting
}

// Begin begins the log line of a call with this environment. It returns nil if the setting turns logging off. The error
// describes an invalid setting. File is ReadFile, or returns what that has returned; nil is ReadFile.
func Begin(environ []string, file func() (Setting, error)) (*Call, error) {
	began := time.Now()
	if file == nil {
		file = ReadFile
	}
	s, err := inForce(environ, file)
	if err != nil || !s.On {
		return nil, err
	}
	c := &Call{Line: Line{Time: began}, setting: s}
	c.trace(value(environ, "TRACEPARENT"), value(environ, "TRACESTATE"))
	return c, nil
}

// Step records a step, see [Line.AddStep].
func (c *Call) Step(took time.Duration, name func() string) {
	if c != nil {
		c.AddStep(took, name)
	}
}

// End writes the line if the setting includes calls with this outcome. Code 0 without a message means success.
func (c *Call) End(code int, message string) error {
	if c == nil || c.setting.Errors && code == 0 && message == "" {
		return nil
	}
	c.Seconds, c.Code, c.Error = Seconds(time.Since(c.Time)), code, message
	c.Time = c.Time.UTC().Truncate(time.Microsecond)
	return c.setting.Write(c.Line)
}
