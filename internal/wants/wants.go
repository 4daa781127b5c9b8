// Package wants says what a key of a configuration takes, beside what its type says.
package wants

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/spelling"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Want is what a key takes, beside what its type says. It stands in the field's tag, and decoding, the schema and the
// reference all go by it:
//
//	want:"l2|l3|l3s"               one of these words
//	want:"0|68..65535 bytes|auto"  a number of a range, or 0, which goes without saying, or a word
//	want:"mac", want:"ifname"      the format of a text, as are address and subnet
//	want:"/^[a-z]{1,28}$/"         a text that matches; its words are those of says
//	says:"a number, or two"        the words of an error, where others are better
//	lacks:"the name of a VRF"      the key has to be there, and these are the words of the error where it is not
//	code:"2"                       the code of an error, where it is not 7
//
// An empty text is the default everywhere. Of a list it is about each item.
type Want struct {
	Words   []string
	Ranges  [][2]int64
	Unit    string
	Formats []string // mac, ifname, address, subnet
	Pattern string
	Says    string
	Lacks   string
	Code    spec.Code
}

// Of reads the tag of a field.
func Of(tag reflect.StructTag) Want {
	w := Want{Says: tag.Get("says"), Lacks: tag.Get("lacks"), Code: spec.CodeConfig}
	if n, err := strconv.Atoi(tag.Get("code")); err == nil {
		w.Code = spec.Code(n)
	}
	text := tag.Get("want")
	if strings.HasPrefix(text, "/") && strings.HasSuffix(text, "/") && len(text) > 1 {
		w.Pattern = text[1 : len(text)-1]
		return w
	}
	for part := range strings.SplitSeq(text, "|") {
		numbers, unit, _ := strings.Cut(part, " ")
		from, to, ranged := strings.Cut(numbers, "..")
		first, err := strconv.ParseInt(from, 10, 64)
		last, err2 := strconv.ParseInt(to, 10, 64)
		switch {
		case part == "":
		case slices.Contains([]string{"mac", "ifname", "address", "subnet"}, part):
			w.Formats = append(w.Formats, part)
		case ranged && err == nil && err2 == nil:
			w.Ranges, w.Unit = append(w.Ranges, [2]int64{first, last}), unit
		case part == "0":
			w.Ranges = append(w.Ranges, [2]int64{})
		default:
			w.Words = append(w.Words, part)
		}
	}
	return w
}

// Some reports whether w restricts the values further than the type does.
func (w Want) Some() bool {
	return w.Words != nil || w.Ranges != nil || w.Formats != nil || w.Pattern != ""
}

// Check returns an error about a value of the right type that w does not allow.
func (w Want) Check(path string, raw json.RawMessage) error {
	if !w.Some() {
		return nil
	}
	if strings.HasPrefix(string(raw), "[") {
		var items []json.RawMessage
		_ = json.Unmarshal(raw, &items) // which it has been before
		for i, item := range items {
			if err := w.Check(path+"["+strconv.Itoa(i)+"]", item); err != nil {
				return err
			}
		}
		return nil
	}
	var text string
	if err := json.Unmarshal(raw, &text); err == nil && (text == "" || string(raw) == "null") {
		return nil
	} else if err == nil {
		return w.text(path, text)
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	within := func(r [2]int64) bool { return r[0] <= n && n <= r[1] }
	if err != nil || w.Ranges == nil || slices.ContainsFunc(w.Ranges, within) {
		return nil
	}
	return spec.Errorf(w.Code, "%s: %d: want %s", path, n, w)
}

// text returns an error about a string that w does not allow.
func (w Want) text(path, text string) error {
	var err error
	for _, format := range w.Formats {
		err = nil
		switch format {
		case "mac":
			err = resource.ValidMAC(path, text)
		case "ifname":
			if err = spec.ValidIfName(text); err != nil {
				err = spec.Errorf(w.Code, "%s: %q: %w", path, text, err)
			}
		case "address":
			if a, bad := netip.ParseAddr(text); bad != nil || a.Zone() != "" {
				err = spec.Errorf(w.Code, "%s: %q: want %s", path, text,
					cmp.Or(w.Says, "an address, such as 192.0.2.1 or 2001:db8::1"))
			}
		case "subnet":
			if _, bad := netip.ParsePrefix(text); bad != nil {
				err = spec.Errorf(w.Code, "%s: %q: want %s", path, text,
					cmp.Or(w.Says, "a subnet, such as 192.0.2.0/24 or 2001:db8::/32"))
			}
		}
		if err == nil {
			return nil
		}
	}
	switch {
	case w.Formats != nil && !slices.Contains(w.Words, text):
		return err
	case w.Pattern != "":
		if fits, err := regexp.MatchString(w.Pattern, text); err != nil || !fits {
			return spec.Errorf(w.Code, "%s: %q: want %s", path, text, w.Says)
		}
	case w.Words != nil && !slices.Contains(w.Words, text):
		hint := ""
		if near, ok := spelling.Nearest(text, w.Words); ok && w.Says == "" {
			hint = fmt.Sprintf("; did you mean %q?", near)
		}
		return spec.Errorf(w.Code, "%s: %q: want %s%s", path, text, w, hint)
	}
	return nil
}

// String returns the allowed values, for error messages.
func (w Want) String() string {
	if w.Says != "" {
		return w.Says
	}
	var ranges []string
	for _, r := range w.Ranges {
		if r != [2]int64{} {
			ranges = append(ranges, fmt.Sprintf("%d to %d", r[0], r[1]))
		}
	}
	numbers, words := strings.Join(ranges, " or "), slices.Clone(w.Words)
	switch {
	case numbers != "" && w.Unit != "":
		numbers += " " + w.Unit
	case numbers != "":
		numbers = "a number from " + numbers
	case len(words) == 1:
		return strconv.Quote(words[0]) + ", or leave the key out"
	case len(words) > 1:
		last := len(words) - 1
		return strings.Join(words[:last], ", ") + " or " + words[last]
	}
	for _, word := range words {
		numbers += ", or " + strconv.Quote(word)
	}
	return numbers
}
