package validate

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/spec"
)

// A sieve finds all mistakes in a configuration with checks that stop at the first one: it removes the reported value
// from the text and runs the check again.
type sieve struct {
	faults []*spec.FileError // without the file's name; their errors say the whole path

	src, rest []byte  // as it was written, and without what is wrong
	whole     []value // of src
	left      []value // of rest; nil where that has changed
	gone      []int   // where in src there stood what is wrong
}

// mostFaults limits how many values are removed, because the remaining text is parsed again each time.
const mostFaults = 100

// A place is the position of a value in the original text.
type place struct {
	path         string // from the root of the document
	line, column int

	value   value // in the remaining text
	missing bool  // what is meant is not there, and this is around it
}

// newSieve returns a sieve for the text of a file. If the text is not a JSON object, it returns the error and no sieve.
func newSieve(src []byte) (*sieve, error) {
	if _, err := spec.ParseObject(src); err != nil {
		_, err = spec.ParseList(src) // it says so of a configuration
		return nil, err
	}
	return &sieve{src: src, rest: slices.Clone(src), whole: values(src)}, nil
}

// sift runs check on the value at path and records its mistakes until check finds no more. An error of check must begin
// with a path below that value, as errors of spec.Errorf do. If the error is about a missing key, its place is that of
// the object that lacks the key, and nothing can be removed; doubt, which may be nil, then decides whether the error
// counts. sift reports whether check succeeded in the end.
func (s *sieve) sift(path string, check func(part []byte) error, doubt func(error) bool) bool {
	for {
		top, there := s.find(path)
		if !there {
			return false
		}
		part := slices.Clone(s.rest[:top.end]) // what it says of lines is then so
		wipe(part[:top.start])
		err := check(part)
		if err == nil {
			return true
		}
		if len(s.gone) == mostFaults {
			s.add(place{line: 1, column: 1},
				fmt.Sprintf("more may be wrong than the first %d mistakes: correct these first", mostFaults))
			return false
		}
		at, text := s.locate(path, err)
		follows := s.lost(at.value)
		switch {
		case follows && at.value.item: // the rest of it says nothing
		case at.missing && !s.lost(at.value) && at.value.item && at.value.start > top.start:
			s.add(at, text)
		case at.missing && !s.lost(top) && (doubt == nil || !doubt(err)):
			s.add(at, text)
			return false
		case at.missing || follows:
			return false // it follows from what is gone
		default:
			s.add(at, text)
		}
		s.blank(at)
	}
}

// count returns the number of items that are left in the list at path.
func (s *sieve) count(path string) int {
	at, there := s.find(path)
	if !there {
		return 0
	}
	return at.items
}

// key returns the place of the key at the end of path, or of the nearest value around it.
func (s *sieve) key(path string) place {
	at, _ := s.find(path)
	place := s.original(at)
	place.line, place.column = position(s.src, at.at)
	return place
}

// fault records a mistake at path. The error begins with a path below that one.
func (s *sieve) fault(path string, err error) {
	at, text := s.locate(path, err)
	s.add(at, text)
}

// locate returns the place of the value below path that an error is about, and the error's message with the whole path.
// If the value does not exist, it is the place of the nearest value around it.
func (s *sieve) locate(path string, err error) (place, string) {
	top, _ := s.find(path)
	text := err.Error()
	if f := (*spec.FileError)(nil); errors.As(err, &f) {
		text = f.Err.Error()
	}
	at, used := s.lead(top, text)
	place, rest := s.original(at), text[used:]
	place.missing = used == 0 || strings.HasPrefix(rest, ".") || strings.HasPrefix(rest, "[")
	switch {
	case used > 0 || place.path == "":
	case strings.Contains(text, ": is missing"), strings.Contains(text, ": lacks "):
		rest = "." + rest
	default:
		rest = ": " + rest
	}
	return place, place.path + rest
}

// find returns the value at a path in the remaining text, or the nearest one around it, and whether it is at the path.
func (s *sieve) find(path string) (value, bool) {
	if s.left == nil {
		s.left = values(s.rest)
	}
	at, used := s.lead(s.left[0], path)
	return at, used == len(path)
}

// lead follows the path below top that a text begins with, as far as it exists, and returns how many bytes of the text
// belong to the path.
func (s *sieve) lead(top value, text string) (value, int) {
	whole := top.path + text
	if top.path != "" && !strings.HasPrefix(text, "[") {
		whole = top.path + "." + text
	}
	best := top
	for _, v := range s.left {
		n := len(v.path)
		within := top.start <= v.start && v.end <= top.end && n > len(top.path) && n >= len(best.path)
		if within && len(whole) >= n && strings.EqualFold(whole[:n], v.path) && ends(whole[n:]) {
			best = v
		}
	}
	return best, max(0, len(best.path)-len(whole)+len(text))
}

// ends reports whether a key may end before rest.
func ends(rest string) bool { return rest == "" || strings.ContainsRune(".[: ,", rune(rest[0])) }

// original returns the place of a value in the original text.
func (s *sieve) original(v value) place {
	out := place{value: v}
	out.line, out.column = position(s.src, v.start)
	for _, w := range s.whole {
		if w.start == v.start {
			out.path = w.path
		}
	}
	return out
}

// lost reports whether a part of v was removed.
func (s *sieve) lost(v value) bool {
	return slices.ContainsFunc(s.gone, func(at int) bool { return v.start <= at && at < v.end })
}

// add records a mistake, unless it is known.
func (s *sieve) add(at place, text string) {
	if slices.ContainsFunc(s.faults, func(f *spec.FileError) bool { return f.Err.Error() == text }) {
		return
	}
	fault := &spec.FileError{Line: at.line, Column: at.column, Err: errors.New(text)}
	if !at.missing {
		fault.Path = at.path
	}
	s.faults = append(s.faults, fault)
}

// blank removes a member or an item, with its comma. The name of a network is replaced by another one, because nothing
// can be read without a name.
func (s *sieve) blank(at place) {
	start := at.value.start
	from, to := at.value.at, at.value.end
	s.gone = append(s.gone, start)
	s.left = nil
	if at.path == "name" && to-start > 2 && s.rest[start] == '"' {
		wipe(s.rest[start:to])
		copy(s.rest[start:], `"x"`)
		return
	}
	const space = " \t\r\n"
	before := bytes.TrimRight(s.rest[:from], space)
	after := bytes.TrimLeft(s.rest[to:], space)
	switch {
	case bytes.HasPrefix(after, []byte{','}):
		to = len(s.rest) - len(after) + 1
	case bytes.HasSuffix(before, []byte{','}):
		from = len(before) - 1
	}
	wipe(s.rest[from:to])
}

// wipe replaces everything but line breaks by spaces.
func wipe(b []byte) {
	for i, c := range b {
		if c != '\n' {
			b[i] = ' '
		}
	}
}
