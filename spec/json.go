package spec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"github.com/fairlead-cni/fairlead/internal/spelling"
)

// A node is a JSON value with its position. encoding/json reports no positions, keeps neither order nor spelling of
// members, and has messages for programmers. So documents are parsed here, and encoding/json decodes only the leaves.
type node struct {
	kind       byte // one of { [ " 0 t n: object, array, string, number, true or false, null
	start, end int  // src[start:end]
	members    []member
	items      []node
}

// A member is a member of an object. If several have the same key, the last one counts, as in encoding/json.
type member struct {
	key     string
	at, end int // the key is src[at:end]
	node    node
}

// maxDepth limits how deeply values are nested, as in encoding/json.
const maxDepth = 10000

// A syntaxError says why src is not JSON.
type syntaxError struct {
	at  int
	msg string
}

func (e *syntaxError) Error() string { return e.msg }

type parser struct {
	src    []byte
	pos    int
	values int
}

// maxValues limits the number of values in a document. The list of valid attachments of a crowded host has a tenth of
// this. Each value needs about 50 times the memory of its text.
const maxValues = 1 << 20

// parse parses src, which must contain exactly one JSON value.
func parse(src []byte) (node, *syntaxError) {
	p := parser{src: src}
	if bytes.HasPrefix(src, []byte("\xef\xbb\xbf")) {
		return node{}, &syntaxError{0, "the text begins with a byte-order mark: save it as UTF-8 without one"}
	}
	if p.space(); p.pos == len(src) {
		return node{}, &syntaxError{p.pos, "there is no JSON here, the text is empty"}
	}
	n, err := p.value(1)
	if err != nil {
		return node{}, err
	}
	if p.space(); p.pos < len(src) {
		return node{}, p.odd("the end of the document")
	}
	return n, nil
}

func (p *parser) space() {
	for p.pos < len(p.src) {
		switch p.src[p.pos] {
		case ' ', '\t', '\r', '\n':
			p.pos++
		default:
			return
		}
	}
}

// peek returns the next byte that is not white space, or 0 at the end.
func (p *parser) peek() byte {
	if p.space(); p.pos < len(p.src) {
		return p.src[p.pos]
	}
	return 0
}

// odd returns the error about the next character, where want is expected.
func (p *parser) odd(want string) *syntaxError {
	if p.pos >= len(p.src) {
		return &syntaxError{p.pos, "the text ends where " + want + " is expected"}
	}
	r, _ := utf8.DecodeRune(p.src[p.pos:])
	rest := p.src[p.pos:]
	var msg string
	switch {
	case bytes.HasPrefix(rest, []byte("//")), bytes.HasPrefix(rest, []byte("/*")), r == '#':
		msg = "JSON has no comments"
	case r == '<' || r == '…' || bytes.HasPrefix(rest, []byte("...")):
		msg = fmt.Sprintf("%s is a placeholder where %s is expected", word(rest), want)
	case r == '\'' || r == '“' || r == '”' || r == '‘' || r == '’' || r == '„':
		msg = fmt.Sprintf("%q is no quotation mark of JSON: write \"", r)
	case r == '"' || r == '{' || r == '[' || r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' &&
		r <= 'Z':
		msg = fmt.Sprintf("%s where %s is expected", word(rest), want)
	default:
		msg = fmt.Sprintf("%q where %s is expected", r, want)
	}
	return &syntaxError{p.pos, msg}
}

// word returns the beginning of b, as much as helps in an error message.
func word(b []byte) string {
	end := bytes.IndexAny(b[1:], " \t\r\n,:;\"'}])/") + 1
	switch {
	case b[0] == '{' || b[0] == '[':
		end = 1
	case b[0] == '<' && bytes.IndexByte(b, '>') > 0:
		end = bytes.IndexByte(b, '>') + 1
	case end <= 0:
		end = len(b)
	case b[end] == '"':
		end++
	}
	return shorten(b[:end])
}

// shorten cuts b to a length that fits into a message.
func shorten(b []byte) string {
	const most = 40
	s := string(bytes.ToValidUTF8(b, []byte("?")))
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}

func (p *parser) value(depth int) (n node, err *syntaxError) {
	c := p.peek()
	n.start = p.pos
	p.values++
	switch {
	case p.values > maxValues:
		return n, &syntaxError{p.pos, fmt.Sprintf("there are more than %d values", maxValues)}
	case depth > maxDepth:
		return n, &syntaxError{p.pos, "the values lie too deep in one another"}
	case c == '{':
		n.kind = '{'
		err = p.object(&n, depth)
	case c == '[':
		n.kind = '['
		err = p.array(&n, depth)
	case c == '"':
		n.kind = '"'
		err = p.str()
	case c == '-' || c >= '0' && c <= '9':
		n.kind = '0'
		err = p.number()
	case p.literal("true"), p.literal("false"):
		n.kind = 't'
	case p.literal("null"):
		n.kind = 'n'
	default:
		return n, p.badValue(c)
	}
	n.end = p.pos
	return n, err
}

func (p *parser) literal(s string) bool {
	if !bytes.HasPrefix(p.src[p.pos:], []byte(s)) {
		return false
	}
	p.pos += len(s)
	return true
}

func (p *parser) badValue(c byte) *syntaxError {
	if c == '}' || c == ']' {
		return &syntaxError{p.pos, fmt.Sprintf("a value is missing before %q", rune(c))}
	}
	if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' {
		w := word(p.src[p.pos:])
		if near, ok := spelling.Nearest(w, []string{"true", "false", "null"}); ok {
			return &syntaxError{p.pos, fmt.Sprintf("%s is no JSON value: did you mean %s?", w, near)}
		}
		return &syntaxError{p.pos, fmt.Sprintf("%s is no JSON value: a string stands in quotation marks", w)}
	}
	return p.odd("a value")
}

func (p *parser) object(n *node, depth int) *syntaxError {
	p.pos++
	if p.peek() == '}' {
		p.pos++
		return nil
	}
	for {
		if c := p.peek(); c != '"' {
			switch {
			case c == 0 && p.pos == len(p.src):
				return p.unclosed("object", n.start)
			case c == '}':
				return &syntaxError{p.pos, "a comma stands before } and no member follows it"}
			case c == ',':
				return &syntaxError{p.pos, "there is one comma too many"}
			}
			return p.odd("a key in quotation marks")
		}
		m := member{at: p.pos}
		if err := p.str(); err != nil {
			return err
		}
		m.end = p.pos
		m.key = text(p.src[m.at:m.end])
		if c := p.peek(); c != ':' {
			if c == 0 && p.pos == len(p.src) {
				return p.unclosed("object", n.start)
			}
			return p.odd(fmt.Sprintf("the colon after the key %q", m.key))
		}
		p.pos++
		if p.peek() == 0 && p.pos == len(p.src) {
			return p.unclosed("object", n.start)
		}
		var err *syntaxError
		if m.node, err = p.value(depth + 1); err != nil {
			return err
		}
		n.members = append(n.members, m)
		if done, err := p.next('}', "object", "member", n.start); done || err != nil {
			return err
		}
	}
}

func (p *parser) array(n *node, depth int) *syntaxError {
	p.pos++
	if p.peek() == ']' {
		p.pos++
		return nil
	}
	for {
		switch c := p.peek(); {
		case c == 0 && p.pos == len(p.src):
			return p.unclosed("array", n.start)
		case c == ']':
			return &syntaxError{p.pos, "a comma stands before ] and no value follows it"}
		case c == ',':
			return &syntaxError{p.pos, "there is one comma too many"}
		}
		item, err := p.value(depth + 1)
		if err != nil {
			return err
		}
		n.items = append(n.items, item)
		if done, err := p.next(']', "array", "value", n.start); done || err != nil {
			return err
		}
	}
}

// next reads the comma after a member, or the end of the container that begins at start.
func (p *parser) next(closing byte, container, item string, start int) (done bool, err *syntaxError) {
	switch c := p.peek(); {
	case c == closing:
		p.pos++
		return true, nil
	case c == ',':
		p.pos++
		return false, nil
	case c == 0 && p.pos == len(p.src):
		return false, p.unclosed(container, start)
	case c == '"' || c == '{' || c == '[':
		return false, &syntaxError{p.pos, fmt.Sprintf("a comma is missing before this %s", item)}
	}
	return false, p.odd(fmt.Sprintf("a comma or %c", closing))
}

func (p *parser) unclosed(what string, start int) *syntaxError {
	line, col := position(p.src, start)
	return &syntaxError{len(p.src), fmt.Sprintf("the text ends inside the %s that begins at line %d, column %d", what,
		line, col)}
}

func (p *parser) str() *syntaxError {
	start := p.pos
	for p.pos++; p.pos < len(p.src); p.pos++ {
		switch c := p.src[p.pos]; {
		case c == '"':
			p.pos++
			return nil
		case c == '\n' || c == '\r':
			return &syntaxError{start, fmt.Sprintf("the string %s is not closed on its line",
				shorten(p.src[start:p.pos]))}
		case c < ' ':
			return &syntaxError{p.pos, fmt.Sprintf("the character %q has to be written as an escape in a string",
				rune(c))}
		case c == '\\':
			p.pos++
			if p.pos < len(p.src) && p.src[p.pos] == 'u' {
				for range 4 {
					if p.pos++; p.pos >= len(p.src) || !hexDigit(p.src[p.pos]) {
						return &syntaxError{min(p.pos, len(p.src)), `\u takes four hexadecimal digits`}
					}
				}
			} else if p.pos < len(p.src) && bytes.IndexByte([]byte(`"\/bfnrt`), p.src[p.pos]) < 0 {
				r, _ := utf8.DecodeRune(p.src[p.pos:])
				return &syntaxError{p.pos - 1, fmt.Sprintf(`\%c is no escape of JSON: a backslash itself is written \\`,
					r)}
			}
		}
	}
	line, col := position(p.src, start)
	return &syntaxError{len(p.src), fmt.Sprintf("the text ends inside the string that begins at line %d, column %d",
		line, col)}
}

func hexDigit(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

func (p *parser) number() *syntaxError {
	start := p.pos
	digits := func() bool {
		from := p.pos
		for p.pos < len(p.src) && p.src[p.pos] >= '0' && p.src[p.pos] <= '9' {
			p.pos++
		}
		return p.pos > from
	}
	is := func(set string) bool {
		if p.pos < len(p.src) && bytes.IndexByte([]byte(set), p.src[p.pos]) >= 0 {
			p.pos++
			return true
		}
		return false
	}
	is("-")
	zero := p.pos < len(p.src) && p.src[p.pos] == '0'
	from := p.pos
	ok := digits() && !(zero && p.pos > from+1)
	if ok && is(".") {
		ok = digits()
	}
	if ok && is("eE") {
		is("+-")
		ok = digits()
	}
	// An address without quotation marks is a number at first sight.
	if ok && p.pos < len(p.src) {
		c, rest := p.src[p.pos], p.src[p.pos:]
		comment := bytes.HasPrefix(rest, []byte("//")) || bytes.HasPrefix(rest, []byte("/*"))
		ok = comment || bytes.IndexByte([]byte("./:-_"), c) < 0 && !(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z')
	}
	if !ok {
		return &syntaxError{start, fmt.Sprintf("%s is no number: a string stands in quotation marks",
			token(p.src[start:]))}
	}
	return nil
}

// token returns the text that an author who forgot the quotation marks may have meant as one value.
func token(b []byte) string {
	end := bytes.IndexAny(b, " \t\r\n,\"}]")
	if end < 0 {
		end = len(b)
	}
	return shorten(b[:end])
}

// text returns the string that the JSON string b encodes.
func text(b []byte) string {
	if b = b[1:]; bytes.IndexByte(b, '\\') < 0 && utf8.Valid(b) {
		return string(b[:len(b)-1])
	}
	var s string
	_ = json.Unmarshal(append([]byte{'"'}, b...), &s) // the parser has read it, so it is one
	return s
}

// position returns line and column of an offset, both counted from 1; a column is a character.
func position(src []byte, at int) (line, column int) {
	before := src[:min(at, len(src))]
	line = 1 + bytes.Count(before, []byte("\n"))
	return line, 1 + utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
}
