package spec

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
)

// A Difference is one respect in which an attachment is not as its ADD made it. Code decides by the fields; people read
// Error. An empty field says nothing.
type Difference struct {
	Resource string `json:"resource,omitempty"` // that differs, in the words of ip(8) and nft(8)
	Kind     string `json:"kind,omitempty"`     // of the resource, as its type is called: Bridge, Veth, Gateway, …
	Rule     bool   `json:"rule,omitempty"`     // the resource is one of the packet filter
	Where    string `json:"where,omitempty"`    // OnHost or InContainer
	Link     string `json:"link,omitempty"`     // that the resource is about
	Object   string `json:"object,omitempty"`   // the resource's key: a route's destination, a lease's address
	File     string `json:"file,omitempty"`     // that has the resource, or should
	Field    string `json:"field,omitempty"`    // that differs, such as mtu, or a part; empty: the whole resource
	Want     string `json:"want,omitempty"`
	Got      string `json:"got,omitempty"` // a value of the field, or Absent, Surplus, Unknown, Denied
	Text     string `json:"text"`          // the sentence about the resource, for people

	Repair  string   `json:"repair,omitempty"`  // what corrects it: ByRepair, ByAttach or ByHand
	Follows bool     `json:"follows,omitempty"` // it follows from the differences of links before it
	Needed  []string `json:"needed,omitempty"`  // the other resources that lack the same link

	cause error
}

// The values of Difference.Where.
const (
	OnHost      = "host"
	InContainer = "container"
)

// The values of Difference.Got that are not values of a field.
const (
	Absent  = "absent"  // it does not exist
	Surplus = "surplus" // it exists and should not
	Unknown = "unknown" // it could not be compared
	Denied  = "denied"  // it could not be compared for lack of a privilege
)

// The values of Difference.Repair.
const (
	ByRepair = "repair" // fairlead repair restores it
	ByAttach = "attach" // only DEL and ADD restore it
	ByHand   = "hand"   // another program's change stands in its place: fairlead doctor has the command
)

// Differs is the Difference of a field that has another value.
func Differs(field, want, got string) Difference {
	return Difference{Field: field, Want: want, Got: got, Text: field + " is " + got + ", want " + want}
}

// Missing is the Difference of a part that does not exist, or of a whole resource if part is empty.
func Missing(part string) Difference {
	return Difference{Field: part, Got: Absent, Text: strings.TrimPrefix(part+" is missing", " ")}
}

// TooMuch is the Difference of a part that should not exist.
func TooMuch(part string) Difference {
	return Difference{Field: part, Got: Surplus, Text: part + " is too much"}
}

// DiffersBy is the Difference of a field that has its own sentence.
func DiffersBy(field, format string, args ...any) Difference {
	return Difference{Field: field, Text: fmt.Sprintf(format, args...)}
}

// Known reports whether the comparison succeeded.
func (d Difference) Known() bool { return d.Got != Unknown && d.Got != Denied }

// Saying returns d with the sentence of err, which stays reachable for errors.Is.
func (d Difference) Saying(err error) Difference {
	d.Text, d.cause = err.Error(), err
	return d
}

// Error returns the resource and the sentence about it.
func (d Difference) Error() string {
	text := d.Text
	if d.Resource != "" {
		text = d.Resource + ": " + text
	}
	if len(d.Needed) > 0 {
		text += "; it is needed by " + strings.Join(d.Needed, ", ")
	}
	return text
}

// Unwrap returns the error that d was made from, in this process.
func (d Difference) Unwrap() error { return d.cause }

// Differences are what CHECK found. A CHECK of Fairlead sends them as JSON in the details of its error.
type Differences []Difference

// Error returns Sentences, one a line.
func (all Differences) Error() string { return strings.Join(all.Sentences(), "\n") }

// Sentences returns a sentence for each resource, with all its differences.
func (all Differences) Sentences() (said []string) {
	for i, d := range all {
		if i > 0 && d.Resource != "" && d.Resource == all[i-1].Resource {
			d.Resource = ""
			said[len(said)-1] += "; " + d.Error()
			continue
		}
		said = append(said, d.Error())
	}
	return said
}

// Unwrap returns the differences one by one, for errors.Is and errors.As.
func (all Differences) Unwrap() []error {
	errs := make([]error, len(all))
	for i, d := range all {
		errs[i] = d
	}
	return errs
}

// Err returns the differences as an error, or nil if there is none.
func (all Differences) Err() error {
	if len(all) == 0 {
		return nil
	}
	return all
}

// DifferencesIn returns the differences that an error of CHECK consists of, in this process or behind an exec. A part
// of the error that is no Difference becomes one whose Got is Unknown or Denied.
func DifferencesIn(err error) (all Differences) {
	for _, part := range parts(err) {
		var many Differences
		var doc *Error
		switch {
		case errors.As(part, &many):
			all = append(all, many...)
		case errors.As(part, &doc) && len(doc.Differences) > 0:
			all = append(all, doc.Differences...)
		default:
			all = append(all, differenceIn(part))
		}
	}
	return all
}

// differenceIn returns the Difference that an error wraps, with the sentence of the whole error.
func differenceIn(err error) Difference {
	if d, ok := err.(Difference); ok {
		return d
	}
	var d Difference
	if !errors.As(err, &d) {
		d.Got = Unknown
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EPERM) {
			d.Got = Denied
		}
	}
	return d.Saying(err)
}

// parts returns the errors that err joins, as errors.Join does. An error whose message says more than its causes counts
// as one.
func parts(err error) (all []error) {
	if err == nil {
		return nil
	}
	many, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	joined := errors.Join(many.Unwrap()...)
	if _, is := err.(Differences); !is && (joined == nil || joined.Error() != err.Error()) {
		return []error{err}
	}
	for _, e := range many.Unwrap() {
		all = append(all, parts(e)...)
	}
	return all
}

// details is the document of differences in the details of an error.
type details struct {
	Differences Differences `json:"differences"`
}

// encodeDetails returns as many of the differences as fit into the details of an error.
func encodeDetails(all Differences) string {
	for n := len(all); n > 0; n /= 2 {
		b, err := json.Marshal(details{all[:n]})
		if err == nil && len(b) <= mostText {
			return string(b)
		}
	}
	return ""
}

// decodeDetails returns the differences in the details of an error, or nil if the details are a text.
func decodeDetails(text string) Differences {
	var d details
	if json.Unmarshal([]byte(text), &d) != nil {
		return nil
	}
	return d.Differences
}

// LacksLink reports whether a link does not exist, whose name Want is.
func (d Difference) LacksLink() bool { return d.Field == "link" && d.Got == Absent }

// SameResource reports whether two differences are of one resource, and the same corrects them.
func (d Difference) SameResource(e Difference) bool {
	return d.Resource == e.Resource && d.Repair == e.Repair
}

// Lines returns the differences one by one, as people read them.
func (all Differences) Lines() []string {
	var lines []string
	for _, d := range all {
		lines = append(lines, d.Error())
	}
	return lines
}
