package support

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"regexp"
	"slices"
	"strings"
)

// removed stands in the place of a secret.
const removed = "(secret removed)"

// secrets finds what is secret in documents and text by the names of keys, and by the form of keys and of addresses
// with a password. It remembers the values, for a message may quote one without its key.
type secrets struct {
	key, form, packed, argument, begun *regexp.Regexp

	text  []*regexp.Regexp
	hints []string // without one of which in lower-case letters no text expression matches
	known []string
}

func newSecrets() *secrets {
	const words = `(?:pass(?:word|wd|_?phrase)|token|secret|credential|private[_-]?key|api[_-]?key|access[_-]?key|` +
		`authorization|bearer)`
	return &secrets{
		begun:    regexp.MustCompile(`[^\s"'=:,\[\](){}…]{4,}…`), // a text that is cut
		key:      regexp.MustCompile(`(?i)` + words),
		argument: regexp.MustCompile(`(?is)^(-*[\w.-]*` + words + `[\w.-]*)(?:[=:](.+))?$`),
		text: []*regexp.Regexp{
			regexp.MustCompile(`(?i)([\w.-]*` + words +
				`[\w.-]*[\\"']*\s*(?::\s*|=\s*))(\\*"(?:\\.|[^"\\])*\\*"|'[^'\n]*'|` +
				`\[[^\]]*|\{[^}]*)`),
			regexp.MustCompile(`(?i)([\w.-]*` + words + `[\w.-]*\s*=\s*)([^\s"';\\]+)`),
			regexp.MustCompile(`(?i)([\w.-]*` + words + `[\w.-]*[\\"']*\s*:[ \t]*)([^\s"'\\][^\n"'\\]*)`),
			// An argument: of a line, and of a list.
			regexp.MustCompile(`(?i)((?:^|[\s\[("'])--?[\w.-]*` + words + `[\w.-]*\s+(?:-\s+)?)([^\s-][^\s"'\\\])]*)`),
			regexp.MustCompile(`(?i)(["']--?[\w.-]*` + words +
				`[\w.-]*\\*["']\s*,\s*)(\\*"(?:\\.|[^"\\])*\\*"|'[^'\n]*')`),
		},
		form: regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\z)|` +
			`(://)[^/\s:@"']*:[^/\s@"']+@|` + // user:password@
			`\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*`), // a JSON Web Token
		hints:  []string{"pass", "token", "secret", "credential", "key", "authorization", "bearer"},
		packed: regexp.MustCompile(`[A-Za-z0-9+/]{60,}={0,2}`),
	}
}

// hold remembers the value of a secret.
func (s *secrets) hold(value any) {
	switch v := value.(type) {
	case string:
		const least = 5 // what is shorter stands in any text
		if v = strings.Trim(v, `\"' `); len(v) >= least && v != removed && !slices.Contains(s.known, v) &&
			v != "false" {
			s.known = append(s.known, v)
		}
	case []any:
		for _, v := range v {
			s.hold(v)
		}
	case map[string]any:
		for _, v := range v {
			s.hold(v)
		}
	}
}

// clean is a part without its secrets: a document by its keys, all else as text.
func (s *secrets) clean(content []byte) []byte {
	if doc, ok := document(content); ok {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		if e.Encode(s.value(doc)) == nil {
			return b.Bytes()
		}
	}
	return []byte(s.line(string(content)))
}

// document reads one document of JSON that is an object or a list.
func document(content []byte) (doc any, ok bool) {
	text := bytes.TrimSpace(content)
	if len(text) == 0 || text[0] != '{' && text[0] != '[' {
		return nil, false
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if d.Decode(&doc) != nil {
		return nil, false
	}
	_, err := d.Token()
	return doc, err == io.EOF
}

func (s *secrets) value(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, inner := range v {
			if s.key.MatchString(key) {
				s.hold(inner)
				v[key] = removed
			} else {
				v[key] = s.value(inner)
			}
		}
		// of an environment
		if name, ok := first(v, "name", "key", "Name", "Key").(string); ok && s.key.MatchString(name) {
			for _, key := range []string{"value", "Value"} {
				if v[key] != nil {
					s.hold(v[key])
					v[key] = removed
				}
			}
		}
	case []any:
		s.arguments(v)
		for i, inner := range v {
			v[i] = s.value(inner)
		}
	case string:
		return s.inner(v)
	}
	return v
}

func first(doc map[string]any, keys ...string) any {
	for _, k := range keys {
		if doc[k] != nil {
			return doc[k]
		}
	}
	return nil
}

// arguments removes what stands behind the name of a secret in a list: the next one behind a flag, the second of a pair
// as those of CNI_ARGS are, and the value of NAME=VALUE.
func (s *secrets) arguments(list []any) {
	for i := range list {
		text, _ := list[i].(string)
		parts := s.argument.FindStringSubmatchIndex(text)
		switch {
		case parts == nil:
		case parts[4] >= 0:
			s.hold(text[parts[4]:])
			list[i] = text[:parts[4]] + removed
		case i+1 < len(list) && (strings.HasPrefix(text, "-") || len(list) == 2 && i == 0):
			if next, _ := list[i+1].(string); !strings.HasPrefix(next, "--") { // another flag
				s.hold(list[i+1])
				list[i+1] = removed
			}
		}
	}
}

// inner is a text in a document, which may be a document itself, also as bytes are written in one: the cache of results
// has the configuration so.
func (s *secrets) inner(text string) any {
	if doc, ok := document([]byte(text)); ok {
		return s.value(doc)
	}
	if b, err := base64.StdEncoding.DecodeString(text); err == nil {
		if doc, ok := document(b); ok {
			return s.value(doc)
		}
	}
	return s.line(text)
}

// line is a text without its secrets. Long runs of what may be bytes go as a whole: what is in them cannot be seen.
func (s *secrets) line(text string) string {
	if strings.Contains(text, "-----BEGIN") || strings.Contains(text, "://") || strings.Contains(text, "eyJ") {
		text = s.form.ReplaceAllString(text, "${1}"+removed)
	}
	inPacked := func(c byte) bool {
		return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z' || c == '+' || c == '/' || c == '='
	}
	text = eachRun(text, inPacked, func(run string) string {
		const long = 60
		if len(run) < long {
			return run
		}
		return s.packed.ReplaceAllStringFunc(run, func(run string) string {
			if strings.ToLower(run) == run { // a path, or a number in hexadecimal
				return run
			}
			return "(bytes removed)"
		})
	})
	lower := strings.ToLower(text)
	if !slices.ContainsFunc(s.hints, func(hint string) bool { return strings.Contains(lower, hint) }) {
		return text
	}
	for _, re := range s.text {
		text = re.ReplaceAllStringFunc(text, func(match string) string {
			parts := re.FindStringSubmatch(match)
			if strings.Contains(parts[2], removed[1:len(removed)-1]) {
				return match
			}
			if !strings.ContainsAny(parts[2], " \t\n") {
				s.hold(parts[2])
			}
			return parts[1] + removed
		})
	}
	return text
}

// forget removes the values that are known to be secret from a text.
func (s *secrets) forget(text string) string {
	slices.SortFunc(s.known, func(a, b string) int { return len(b) - len(a) })
	for _, v := range s.known {
		text = strings.ReplaceAll(text, v, removed)
		for _, html := range []bool{true, false} {
			var quoted bytes.Buffer
			e := json.NewEncoder(&quoted)
			e.SetEscapeHTML(html)
			if e.Encode(v) == nil {
				text = strings.ReplaceAll(text, string(quoted.Bytes()[1:quoted.Len()-2]), removed)
			}
		}
	}
	if !strings.Contains(text, "…") {
		return text
	}
	return s.begun.ReplaceAllStringFunc(text, func(cut string) string {
		start := strings.TrimSuffix(cut, "…")
		if slices.ContainsFunc(s.known, func(v string) bool { return strings.HasPrefix(v, start) }) {
			return removed + "…"
		}
		return cut
	})
}
