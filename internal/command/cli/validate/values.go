package validate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A value is a value of a JSON document, with its position in the text.
type value struct {
	path       string // from the root of the document
	at         int    // of the key, where it has one
	start, end int
	item       bool // of a list
	items      int  // how many it has, as a list
}

// A reader lists the values of a document.
type reader struct {
	*json.Decoder
	src []byte
	all []value
}

// longestPath limits the paths of the values that are listed. Paths that errors begin with are shorter.
const longestPath = 1000

// values returns the values of a document, each before its parts. What follows a mistake is left out.
func values(src []byte) []value {
	r := reader{Decoder: json.NewDecoder(bytes.NewReader(src)), src: src}
	r.UseNumber()
	_ = r.value(value{at: r.next()})
	return r.all
}

// next returns the offset of the next key, value or end.
func (r *reader) next() int {
	return len(r.src) - len(bytes.TrimLeft(r.src[r.InputOffset():], " \t\r\n,:"))
}

// value lists v, whose end is not known yet, and its parts.
func (r *reader) value(v value) error {
	v.start = r.next()
	if len(v.path) > longestPath {
		return r.Decode(new(json.RawMessage))
	}
	index := len(r.all)
	r.all = append(r.all, v)
	opening, err := r.Token()
	_, nested := opening.(json.Delim)
	for nested && err == nil && r.More() {
		part := value{at: r.next(), item: opening == json.Delim('[')}
		if part.item {
			part.path = v.path + "[" + strconv.Itoa(r.all[index].items) + "]"
			r.all[index].items++
		} else {
			key, _ := r.Token()
			part.path = strings.TrimPrefix(v.path+"."+fmt.Sprint(key), ".")
		}
		err = r.value(part)
	}
	if nested && err == nil {
		_, err = r.Token()
	}
	r.all[index].end = int(r.InputOffset())
	return err
}

// position returns line and column of an offset, both counted from 1; a column is a character.
func position(src []byte, at int) (line, column int) {
	before := src[:min(at, len(src))]
	line = 1 + bytes.Count(before, []byte("\n"))
	return line, 1 + utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
}
