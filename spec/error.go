package spec

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
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

// Errorf makes an error document. What the format wraps by %w stays reachable for errors.Is and errors.As in this
// process, and its hint and holder are the document's. A message begins with the path of the value that it is about, if
// it is about one; where no file has that value, the hint says so.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	e := &Error{Code: code, Msg: err.Error()}
	switch err.(type) {
	case interface{ Unwrap() error }, interface{ Unwrap() []error }:
		e.cause = err
		e.inherit(err)
	}
	e.Hint = cmp.Or(e.Hint, Origin(e.Msg))
	return e
}

// WithHint gives e, which is new, a hint: what mends it, in whole sentences.
func (e *Error) WithHint(hint string) *Error {
	e.Hint = hint
	return e
}

// HeldBy gives e, which is new, the owner of what was asked for.
func (e *Error) HeldBy(owner string) *Error {
	e.Holder = owner
	return e
}

// Freed says how what a holder has is given back if nothing else does so; it is empty where the holder is not known in
// full.
func Freed(holder string) string {
	network, rest, _ := strings.Cut(holder, "/")
	id, ifName, _ := strings.Cut(rest, "/")
	if ValidName(network) != nil || ValidContainerID(id) != nil || ValidIfName(ifName) != nil {
		return ""
	}
	return fmt.Sprintf("If its container is gone, `fairlead del %s gone --container-id %s -i %s` gives back what it "+
		"holds.", network, id, ifName)
}

// Origin is the hint about a value that a runtime gives, by its path; it is empty where a file may have the value.
func Origin(path string) string {
	const others = " (Other runtimes: from what the container was created with.)"
	switch {
	case strings.HasPrefix(path, "CNI_ARGS"):
		return "No file says that: it comes from CNI_ARGS."
	case strings.HasPrefix(path, "runtimeConfig.portMappings"):
		return "No file says that: it comes from -p of `fairlead run`, or from CAP_ARGS." + others
	case strings.HasPrefix(path, "runtimeConfig.aliases"):
		return "No file says that: it comes from --alias of `fairlead run`, or from CAP_ARGS." + others
	case strings.HasPrefix(path, "runtimeConfig."):
		return "No file says that: it comes from CAP_ARGS." + others
	}
	return ""
}

// inherit takes over the first hint and the first holder of err and of what it wraps.
func (e *Error) inherit(err error) {
	switch x := err.(type) {
	case *Error:
		e.Hint, e.Holder = cmp.Or(e.Hint, x.Hint), cmp.Or(e.Holder, x.Holder)
	case interface{ Unwrap() error }:
		if inner := x.Unwrap(); inner != nil {
			e.inherit(inner)
		}
	case interface{ Unwrap() []error }:
		for _, inner := range x.Unwrap() {
			e.inherit(inner)
		}
	}
}

// AsError makes an error document of any error. Code and details are those of the *Error that err wraps (the first one,
// where errors are joined), else def is the code; the message is all that err says. Hint and holder are the first that
// there are. It is nil for nil.
func AsError(err error, def Code) *Error {
	if err == nil {
		return nil
	}
	if e, ok := err.(*Error); ok && e.Code != 0 {
		return e
	}
	out := &Error{Code: def, Msg: err.Error(), cause: err}
	out.inherit(err)
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

// Encode is the document as a plugin prints it (clause P7), in the version of the configuration. Runtimes show message
// and details alone, so the details end with what mends the error.
func (e *Error) Encode(v Version) []byte {
	doc := *e
	doc.Msg, doc.Details, doc.Hint = bounded(doc.Msg), bounded(doc.Details), bounded(doc.Hint)
	for _, more := range doc.mends() {
		doc.Details = strings.TrimPrefix(doc.Details+"; "+more, "; ")
	}
	doc.CNIVersion = v.Or010()
	b, _ := encode(doc)
	return indent(b)
}

// mends is what stands in the details for those who show nothing else.
func (e *Error) mends() []string {
	return slices.DeleteFunc([]string{e.Hint, Freed(e.Holder)}, func(s string) bool { return s == "" })
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
	}{{"cniVersion", (*string)(&e.CNIVersion)}, {"details", &e.Details}, {"hint", &e.Hint}, {"holder", &e.Holder}} {
		if m, ok := d.root.fold(f.key); ok && m.node.kind == '"' {
			*f.v = text(d.raw(m.node))
		}
	}
	for _, more := range slices.Backward(e.mends()) { // which Encode has put there
		e.Details = strings.TrimSuffix(strings.TrimSuffix(e.Details, more), "; ")
	}
	return e, true
}
