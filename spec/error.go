package spec

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Error returns the message, followed by the details if there are any.
func (e *Error) Error() string {
	if e.Details == "" {
		return e.Msg
	}
	return e.Msg + "; " + e.Details
}

// Unwrap returns the error that e was made from by Errorf or AsError.
func (e *Error) Unwrap() error { return e.cause }

// Errorf makes an error document. An error that the format wraps by %w stays reachable for errors.Is and errors.As in
// this process, and its hint and holder are copied. A message about a value begins with the path of the value; if that
// value comes from no file, the hint says where it comes from.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	e := &Error{Code: code, Msg: err.Error()}
	switch err.(type) {
	case interface{ Unwrap() error }, interface{ Unwrap() []error }:
		e.cause = err
		e.inherit(err)
	}
	e.Hint = cmp.Or(e.Hint, origin(e.Msg))
	return e
}

// WithHint sets the hint of a new error e and returns e. The hint says in whole sentences how to correct the problem.
func (e *Error) WithHint(hint string) *Error {
	e.Hint = hint
	return e
}

// WithOrigin sets the hint of a new error e to where the value at path comes from, and returns e.
func (e *Error) WithOrigin(path string) *Error { return e.WithHint(origin(path)) }

// HeldBy sets the owner that has the requested object, in the form of Owner.String, and returns e.
func (e *Error) HeldBy(owner string) *Error {
	e.Holder = owner
	return e
}

// ReleaseHint returns how to release what the holder has. It is empty if a part of the holder's name is unknown.
func (e *Error) ReleaseHint() string {
	network, rest, _ := strings.Cut(e.Holder, "/")
	id, ifName, _ := strings.Cut(rest, "/")
	if ValidName(network) != nil || ValidContainerID(id) != nil || ValidIfName(ifName) != nil {
		return ""
	}
	return fmt.Sprintf("If its container is gone, `fairlead del %s gone --container-id %s -i %s` gives back what it "+
		"holds.", network, id, ifName)
}

// origin returns a hint where a value in a runtime's call comes from, by its path. It is empty if the value may be in a
// file.
func origin(path string) string {
	const others = " (Other runtimes: from what the container was created with.)"
	switch {
	case strings.HasPrefix(path, "CNI_ARGS"):
		return "The value is in no file. It comes from CNI_ARGS."
	case strings.HasPrefix(path, "runtimeConfig.portMappings"):
		return "The value is in no file. It comes from -p of `fairlead run`, or from CAP_ARGS." + others
	case strings.HasPrefix(path, "runtimeConfig.aliases"):
		return "The value is in no file. It comes from --alias of `fairlead run`, or from CAP_ARGS." + others
	case strings.HasPrefix(path, "runtimeConfig."):
		return "The value is in no file. It comes from CAP_ARGS." + others
	}
	return ""
}

// inherit copies the first hint and the first holder in err and the errors that it wraps.
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

// AsError converts any error to an error document. Code and details are those of the first *Error that err wraps;
// without one, the code is def. The message is the whole text of err. Hint and holder are the first ones in the chain.
// AsError of nil is nil.
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
	if errors.As(err, new(Differences)) {
		out.Differences = DifferencesIn(err)
	}
	return out
}

// Encode returns the document as a plugin prints it (clause P7), in the version of the configuration. Runtimes show
// only message and details, so the hint is appended to the details.
func (e *Error) Encode(v Version) []byte {
	doc := *e
	doc.Msg, doc.Details, doc.Hint = bounded(doc.Msg), bounded(doc.Details), bounded(doc.Hint)
	if doc.Details == "" && len(doc.Differences) > 0 {
		doc.Details = encodeDetails(doc.Differences)
	} else {
		for _, more := range doc.fixes() {
			doc.Details = strings.TrimPrefix(doc.Details+"; "+more, "; ")
		}
	}
	doc.CNIVersion = v.Or010()
	b, _ := encode(doc)
	return indent(b)
}

// fixes returns the parts of e that are repeated in the details, for runtimes that show nothing else.
func (e *Error) fixes() []string {
	return slices.DeleteFunc([]string{e.Hint, e.ReleaseHint()}, func(s string) bool { return s == "" })
}

// mostText limits the length of a message in bytes, because runtimes write messages into logs and events.
const mostText = 16 << 10

func bounded(s string) string {
	if len(s) <= mostText {
		return s
	}
	const cut = " … (the message is cut here)"
	return strings.ToValidUTF8(s[:mostText-len(cut)], "") + cut
}

// DecodeError reads an error document, a JSON object with a code or a message. The bool reports whether b is one. A
// negative code is read without its sign, because some plugins print the dashes of the table in specification 0.4.0.
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
	if e.Differences = decodeDetails(e.Details); e.Differences != nil {
		e.Details = ""
	}
	for _, more := range slices.Backward(e.fixes()) { // which Encode has put there
		e.Details = strings.TrimSuffix(strings.TrimSuffix(e.Details, more), "; ")
	}
	return e, true
}
