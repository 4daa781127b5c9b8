package spec

import (
	"errors"
	"slices"
	"strconv"
	"strings"
)

// A Sieve finds all mistakes in a configuration with checks that stop at the first one: it removes the reported value
// from the text and runs the check again.
type Sieve struct {
	Faults []*FileError // without the file's name; their errors say the whole path

	src, rest []byte // as it was written, and without what is wrong
	root      node   // of src
	left      *node  // of rest; nil where that has changed
	gone      []int  // where in src there stood what is wrong
}

// mostFaults limits how many values are removed, because the remaining text is parsed again each time.
const mostFaults = 100

// A Place is the position of a value in the original text.
type Place struct {
	Path         string // from the root of the document
	Line, Column int

	node    node
	at      int  // of the key, where it has one
	item    bool // of a list
	missing bool // what is meant is not there, and this is around it
}

// NewSieve returns a Sieve for the text of a file. If the text is not a JSON object, it returns the error and no Sieve.
func NewSieve(src []byte) (*Sieve, error) {
	d, err := openObject(src, "the configuration")
	if err != nil {
		return nil, err
	}
	return &Sieve{src: src, rest: slices.Clone(src), root: d.root}, nil
}

// Sift runs check on the value at path and records its mistakes until check finds no more. An error of check must begin
// with a path below that value, as errors of Errorf do. If the error is about a missing key, its place is that of the
// object that lacks the key, and nothing can be removed; doubt, which may be nil, then decides whether the error
// counts. Sift reports whether check succeeded in the end.
func (s *Sieve) Sift(path string, check func(part []byte) error, doubt func(error) bool) bool {
	for {
		top, there := s.find(path)
		if !there {
			return false
		}
		part := slices.Clone(s.rest[:top.node.end]) // what it says of lines is then so
		wipe(part[:top.node.start])
		err := check(part)
		if err == nil {
			return true
		}
		if len(s.gone) == mostFaults {
			err = Errorf(CodeConfig, "more may be wrong than the first %d mistakes: correct these first", mostFaults)
			s.fault(Place{Line: 1, Column: 1}, err.Error(), err)
			return false
		}
		at, text := s.Locate(path, err)
		follows := s.lost(at.node)
		switch {
		case follows && at.item: // the rest of it says nothing
		case at.missing && !s.lost(at.node) && at.item && at.node.start > top.node.start:
			s.fault(at, text, err)
		case at.missing && !s.lost(top.node) && (doubt == nil || !doubt(err)):
			s.fault(at, text, err)
			return false
		case at.missing || follows:
			return false // it follows from what is gone
		default:
			s.fault(at, text, err)
		}
		s.blank(at)
	}
}

// Len returns the number of items that are left in the list at path.
func (s *Sieve) Len(path string) int {
	at, there := s.find(path)
	if !there {
		return 0
	}
	return len(at.node.items)
}

// Key returns the place of the key at the end of path, or of the nearest value around it.
func (s *Sieve) Key(path string) Place {
	at, _ := s.find(path)
	place := s.original(at)
	place.Line, place.Column = position(s.src, at.at)
	return place
}

// Fault records a mistake at path. The error begins with a path below that one.
func (s *Sieve) Fault(path string, err error) {
	at, text := s.Locate(path, err)
	s.fault(at, text, err)
}

// Locate returns the place of the value below path that an error is about, and the error's message with the whole path.
// If the value does not exist, it is the place of the nearest value around it.
func (s *Sieve) Locate(path string, err error) (Place, string) {
	top, _ := s.find(path)
	text := err.Error()
	if f := (*FileError)(nil); errors.As(err, &f) {
		text = f.Err.Error()
	}
	at, used := s.lead(top, text)
	place, rest := s.original(at), text[used:]
	place.node, place.at, place.item = at.node, at.at, at.item
	place.missing = used == 0 || strings.HasPrefix(rest, ".") || strings.HasPrefix(rest, "[")
	switch {
	case used > 0 || place.Path == "":
	case strings.Contains(text, ": is missing"), strings.Contains(text, ": lacks "):
		rest = "." + rest
	default:
		rest = ": " + rest
	}
	return place, place.Path + rest
}

// find follows a path through the remaining text and reports whether the whole path exists.
func (s *Sieve) find(path string) (Place, bool) {
	if s.left == nil {
		root, _ := parse(s.rest)
		s.left = &root
	}
	at, used := s.lead(Place{node: *s.left, at: s.left.start}, path)
	return at, used == len(path)
}

// lead follows the path that a text begins with, as far as it exists, and returns how many bytes of the text belong to
// the path.
func (s *Sieve) lead(from Place, text string) (Place, int) {
	used := 0
	for {
		rest := text[used:]
		next, n := from, 0
		switch from.node.kind {
		case '{':
			if used > 0 && !strings.HasPrefix(rest, ".") {
				return from, used
			}
			key := strings.TrimPrefix(rest, ".")
			for _, m := range from.node.members {
				is := m.key != "" && len(key) >= len(m.key) && strings.EqualFold(key[:len(m.key)], m.key)
				if is && len(m.key) >= n && ends(key[len(m.key):]) {
					next, n = Place{node: m.node, at: m.at}, len(m.key)
				}
			}
			if n > 0 {
				n += len(rest) - len(key)
			}
		case '[':
			number, _, closed := strings.Cut(strings.TrimPrefix(rest, "["), "]")
			i, err := strconv.Atoi(number)
			if strings.HasPrefix(rest, "[") && closed && err == nil && i >= 0 && i < len(from.node.items) {
				item := from.node.items[i]
				next, n = Place{node: item, at: item.start, item: true}, len(number)+2
			}
		}
		if n == 0 {
			return from, used
		}
		from, used = next, used+n
	}
}

// ends reports whether a key may end before rest.
func ends(rest string) bool { return rest == "" || strings.ContainsRune(".[: ,", rune(rest[0])) }

// original converts the place of a value to its place in the original text.
func (s *Sieve) original(at Place) Place {
	out := Place{}
	out.Line, out.Column = position(s.src, at.node.start)
	n := s.root
search:
	for n.start != at.node.start {
		for _, m := range n.members {
			if m.node.start <= at.node.start && at.node.start < m.node.end {
				n, out.Path = m.node, join(out.Path, m.key)
				continue search
			}
		}
		for i, item := range n.items {
			if item.start <= at.node.start && at.node.start < item.end {
				n, out.Path = item, out.Path+"["+strconv.Itoa(i)+"]"
				continue search
			}
		}
		break
	}
	return out
}

// lost reports whether a part of n was removed.
func (s *Sieve) lost(n node) bool {
	for _, at := range s.gone {
		if n.start <= at && at < n.end {
			return true
		}
	}
	return false
}

func (s *Sieve) fault(at Place, text string, err error) {
	if slices.ContainsFunc(s.Faults, func(f *FileError) bool { return f.Err.Error() == text }) {
		return
	}
	whole := &Error{Code: AsError(err, CodeConfig).Code, Msg: text, cause: err}
	fault := &FileError{Line: at.Line, Column: at.Column, Err: whole}
	if !at.missing {
		fault.Path = at.Path
	}
	s.Faults = append(s.Faults, fault)
}

// blank removes a member or an item, with its comma. The name of a network is replaced by another one, because nothing
// can be read without a name.
func (s *Sieve) blank(at Place) {
	from, to := at.at, at.node.end
	s.gone = append(s.gone, at.node.start)
	s.left = nil
	if s.original(at).Path == "name" && to-at.node.start > 2 && s.rest[at.node.start] == '"' {
		wipe(s.rest[at.node.start:to])
		copy(s.rest[at.node.start:], `"x"`)
		return
	}
	after := to
	for after < len(s.rest) && strings.IndexByte(" \t\r\n", s.rest[after]) >= 0 {
		after++
	}
	if after < len(s.rest) && s.rest[after] == ',' {
		to = after + 1
	} else {
		for before := from - 1; before > 0 && strings.IndexByte(", \t\r\n", s.rest[before]) >= 0; before-- {
			if s.rest[before] == ',' {
				from = before
				break
			}
		}
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
