package spec

import (
	"errors"
	"fmt"
	"strings"
)

// Error is the message, and the details where there are any.
func (e *Error) Error() string {
	if e.Details == "" {
		return e.Msg
	}
	return e.Msg + "; " + e.Details
}

// Unwrap is what e was made from by Errorf or AsError.
func (e *Error) Unwrap() error { return e.cause }

// Errorf makes an error document. What the format wraps by %w stays reachable for errors.Is and
// errors.As in this process.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	e := &Error{Code: code, Msg: err.Error()}
	switch err.(type) {
	case interface{ Unwrap() error }, interface{ Unwrap() []error }:
		e.cause = err
	}
	return e
}

// AsError makes an error document of any error. Code and details are those of the *Error that err wraps
// (the first one, where errors are joined), else def is the code; the message is all that err says. It
// is nil for nil.
func AsError(err error, def Code) *Error {
	if err == nil {
		return nil
	}
	if e, ok := err.(*Error); ok && e.Code != 0 {
		return e
	}
	out := &Error{Code: def, Msg: err.Error(), cause: err}
	var inner *Error
	if errors.As(err, &inner) {
		out.CNIVersion, out.Details = inner.CNIVersion, inner.Details
		if inner.Code != 0 { // a plugin may print a message alone
			out.Code = inner.Code
		}
		out.Msg = strings.Replace(out.Msg, inner.Error(), inner.Msg, 1) // the details are not said twice
	}
	out.Msg = strings.ReplaceAll(out.Msg, "\n", "; ") // errors.Join's separator
	return out
}

// Encode is the document as a plugin prints it (clause P7), in the version of the configuration.
func (e *Error) Encode(v Version) []byte {
	doc := *e
	doc.Msg, doc.Details = bounded(doc.Msg), bounded(doc.Details)
	doc.CNIVersion = v.Or010()
	b, _ := encode(doc)
	return indent(b)
}

// mostText is how long a message may be: runtimes write it into logs and events.
const mostText = 16 << 10

func bounded(s string) string {
	if len(s) <= mostText {
		return s
	}
	const cut = " … (the message is cut here)"
	return strings.ToValidUTF8(s[:mostText-len(cut)], "") + cut
}

// DecodeError reads an error document: a JSON object that has a code or a message. The bool says
// whether b is one. A code below zero is taken without its sign, for the specification's table of 0.4.0
// has been printed with dashes before the numbers.
func DecodeError(b []byte) (*Error, bool) {
	d, err := openObject(b, "the error")
	if err != nil {
		return nil, false
	}
	e := &Error{}
	code, hasCode := d.root.fold("code")
	msg, hasMsg := d.root.fold("msg")
	if !hasCode && !hasMsg {
		return nil, false
	}
	var n int
	if err := d.integer(code.node, "code", &n); hasCode && err != nil {
		return nil, false
	}
	e.Code = Code(max(n, -n))
	if err := d.str(msg.node, "msg", &e.Msg); hasMsg && err != nil {
		return nil, false
	}
	for _, f := range []struct {
		key string
		v   *string
	}{{"cniVersion", (*string)(&e.CNIVersion)}, {"details", &e.Details}} {
		if m, ok := d.root.fold(f.key); ok && m.node.kind == '"' {
			*f.v = text(d.raw(m.node))
		}
	}
	return e, true
}
