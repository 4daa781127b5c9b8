package resource

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A pattern is a regular expression of the kind that lists of allowed sysctls are written in. It understands
// letters, ., classes such as [a-z_] and [[:digit:]], \d \w \s and their opposites, groups, |, *, +, ?, {n,m}, ^ and
// $, and refuses all else, so that it never means something other than package regexp would. That
// package is not used here because linking it costs every start of every plugin a tenth of a millisecond.
//
// It maps the places of a text where it may begin to those where it may then end, so its time does not
// explode.
type pattern func(text []rune, at places) places

// places says of each position in a text, its end included, whether it is meant.
type places []bool

// matches reports whether the pattern is found anywhere in text.
func (p pattern) matches(text string) bool {
	runes := []rune(text)
	at := make(places, len(runes)+1)
	for i := range at {
		at[i] = true
	}
	return slices.Contains(p(runes, at), true)
}

func parsePattern(s string) (pattern, error) {
	if !utf8.ValidString(s) {
		return nil, fmt.Errorf("%q: is no UTF-8", s)
	}
	p := patternParser{rest: []rune(s)}
	all, err := p.alternatives()
	if err == nil && len(p.rest) > 0 {
		err = fmt.Errorf("%q: a ) without its (", string(p.rest))
	}
	return all, err
}

type patternParser struct{ rest []rune }

func (p *patternParser) next(r rune) bool {
	if len(p.rest) > 0 && p.rest[0] == r {
		p.rest = p.rest[1:]
		return true
	}
	return false
}

func (p *patternParser) alternatives() (pattern, error) {
	var any []pattern
	for {
		one, err := p.sequence()
		if err != nil {
			return nil, err
		}
		any = append(any, one)
		if !p.next('|') {
			break
		}
	}
	return func(text []rune, at places) places {
		end := make(places, len(at))
		for _, one := range any {
			end.add(one(text, at))
		}
		return end
	}, nil
}

func (p *patternParser) sequence() (pattern, error) {
	var all []pattern
	for len(p.rest) > 0 && p.rest[0] != '|' && p.rest[0] != ')' {
		one, err := p.single()
		if err == nil {
			one, err = p.repeated(one)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return func(text []rune, at places) places {
		for _, one := range all {
			at = one(text, at)
		}
		return at
	}, nil
}

func (p *patternParser) single() (pattern, error) {
	switch {
	case p.next('^'):
		return where(func(_ []rune, i int) bool { return i == 0 }), nil
	case p.next('$'):
		return where(func(text []rune, i int) bool { return i == len(text) }), nil
	case p.next('.'):
		return char(func(r rune) bool { return r != '\n' }), nil
	case p.next('['):
		in, err := p.class()
		return char(in), err
	case p.next('('):
		if p.next('?') && !p.next(':') {
			return nil, fmt.Errorf("(?%s: only (?: is understood", string(p.rest[:min(1, len(p.rest))]))
		}
		one, err := p.alternatives()
		if err == nil && !p.next(')') {
			err = fmt.Errorf("a ( without its )")
		}
		return one, err
	case slices.Contains([]rune("*+?{"), p.rest[0]):
		return nil, fmt.Errorf("%c: nothing before it that could be repeated", p.rest[0])
	case p.next('\\'):
		in, err := p.escaped()
		return char(in), err
	}
	want := p.rest[0]
	p.rest = p.rest[1:]
	return char(func(r rune) bool { return r == want }), nil
}

// escaped is what follows a \.
func (p *patternParser) escaped() (func(rune) bool, error) {
	if len(p.rest) == 0 {
		return nil, fmt.Errorf(`a \ at the end`)
	}
	want := p.rest[0]
	p.rest = p.rest[1:]
	if in := named(string(unicode.ToLower(want))); in != nil && strings.ContainsRune("dwsDWS", want) {
		return func(r rune) bool { return in(r) == unicode.IsLower(want) }, nil
	}
	if want >= unicode.MaxASCII || unicode.IsLetter(want) || unicode.IsDigit(want) {
		return nil, fmt.Errorf(`\%c is not understood`, want)
	}
	return func(r rune) bool { return r == want }, nil
}

// named are the classes that have a name.
func named(name string) func(rune) bool {
	var ranges string
	switch name {
	case "d", "digit":
		ranges = "09"
	case "w", "word":
		ranges = "09AZaz__"
	case "s":
		ranges = "\t\n\f\r  "
	case "space":
		ranges = "\t\r  "
	case "alnum":
		ranges = "09AZaz"
	case "alpha":
		ranges = "AZaz"
	case "lower":
		ranges = "az"
	case "upper":
		ranges = "AZ"
	case "xdigit":
		ranges = "09AFaf"
	default:
		return nil
	}
	return func(r rune) bool {
		for i := 0; i < len(ranges); i += 2 {
			if r >= rune(ranges[i]) && r <= rune(ranges[i+1]) {
				return true
			}
		}
		return false
	}
}

// class is what stands between [ and ].
func (p *patternParser) class() (func(rune) bool, error) {
	var any []func(rune) bool
	not := p.next('^')
	for first := true; first || !p.next(']'); first = false {
		if after, ok := strings.CutPrefix(string(p.rest), "[:"); ok {
			name, rest, _ := strings.Cut(after, ":]")
			in := named(name)
			if len(name) < 4 || in == nil {
				return nil, fmt.Errorf("[:%s is not understood", name)
			}
			any, p.rest = append(any, in), []rune(rest)
			continue
		}
		if len(p.rest) == 0 {
			return nil, fmt.Errorf("a [ without its ]")
		}
		low, in, err := p.member()
		if err != nil {
			return nil, err
		}
		if len(p.rest) > 1 && p.rest[0] == '-' && p.rest[1] != ']' {
			p.rest = p.rest[1:]
			high, class, err := p.member()
			if err != nil {
				return nil, err
			}
			if in != nil || class != nil || high < low {
				return nil, fmt.Errorf("%c-%c is no range", low, high)
			}
			in = func(r rune) bool { return r >= low && r <= high }
		} else if in == nil {
			in = func(r rune) bool { return r == low }
		}
		any = append(any, in)
	}
	return func(r rune) bool {
		return not != slices.ContainsFunc(any, func(in func(rune) bool) bool { return in(r) })
	}, nil
}

// member is one character of a class, or a class in it such as \d.
func (p *patternParser) member() (r rune, class func(rune) bool, err error) {
	r, p.rest = p.rest[0], p.rest[1:]
	if r != '\\' {
		return r, nil, nil
	}
	if len(p.rest) > 0 && !strings.ContainsRune("dwsDWS", p.rest[0]) {
		r = p.rest[0]
		_, err = p.escaped()
		return r, nil, err
	}
	class, err = p.escaped()
	return r, class, err
}

// repeated is one, as often as what follows it says.
func (p *patternParser) repeated(one pattern) (pattern, error) {
	least, most := 1, 1
	switch {
	case p.next('*'):
		least, most = 0, -1
	case p.next('+'):
		least, most = 1, -1
	case p.next('?'):
		least, most = 0, 1
	case len(p.rest) > 0 && p.rest[0] == '{':
		inside, rest, ok := strings.Cut(string(p.rest[1:]), "}")
		low, high, comma := strings.Cut(inside, ",")
		var err1, err2 error
		least, err1 = strconv.Atoi(low)
		most = least
		if comma && high == "" {
			most = -1
		} else if comma {
			most, err2 = strconv.Atoi(high)
		}
		if !ok || low != strconv.Itoa(least) || comma && high != "" && high != strconv.Itoa(most) || err1 != nil || err2 != nil || least < 0 || least > 1000 || most > 1000 || most >= 0 && most < least {
			return nil, fmt.Errorf("{%s}: want such as {2}, {2,} or {2,5}, up to 1000", inside)
		}
		p.rest = []rune(rest)
	default:
		return one, nil
	}
	p.next('?') // which of several is found makes no difference here
	if len(p.rest) > 0 && slices.Contains([]rune("*+?{"), p.rest[0]) {
		return nil, fmt.Errorf("%c after a repetition", p.rest[0])
	}
	return func(text []rune, at places) places {
		for range least {
			at = one(text, at)
		}
		end := slices.Clone(at)
		for n := least; n != most && slices.Contains(at, true); n++ {
			at = one(text, at)
			if !end.add(at) {
				break
			}
		}
		return end
	}, nil
}

// add makes p mean what q means too, and reports whether that was news.
func (p places) add(q places) (news bool) {
	for i, v := range q {
		news = news || v && !p[i]
		p[i] = p[i] || v
	}
	return news
}

// char is a character that in is true for.
func char(in func(rune) bool) pattern {
	return func(text []rune, at places) places {
		end := make(places, len(at))
		for i, r := range text {
			end[i+1] = at[i] && in(r)
		}
		return end
	}
}

// where is a place between characters.
func where(is func(text []rune, i int) bool) pattern {
	return func(text []rune, at places) places {
		end := make(places, len(at))
		for i := range at {
			end[i] = at[i] && is(text, i)
		}
		return end
	}
}
