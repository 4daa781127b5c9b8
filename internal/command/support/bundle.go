// Package support writes what a maintainer needs of a host into one file: parts that the caller collected, without
// secrets and, on demand, without addresses and names. What a part says is not trusted.
package support

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"strings"
	"time"
	"unicode"
)

// Top is the directory that all is in.
const Top = "fairlead-support"

// The bounds of a bundle. What is longer is cut, what comes too late is left out; both are said.
const (
	MostPart = 1 << 20
	MostAll  = 24 << 20
	MostFile = 4000 // parts
)

// A Part is a file of a bundle.
type Part struct {
	Name    string // its path below Top, with slashes
	About   string // what it is, for the index
	Content []byte
	Err     error // why it is missing, or not complete
}

// A Bundle is what was collected.
type Bundle struct {
	About string // the first lines of the index: of which version, when
	Mask  bool   // addresses, MACs and Names are replaced
	Names []string
	Key   []byte // of the mask, at random
	When  time.Time

	parts   []Part
	size    int
	dropped int
}

// Add adds a part, as far as there is room.
func (b *Bundle) Add(p Part) {
	if len(p.Content) > MostPart {
		p.Err = errors.Join(p.Err, fmt.Errorf("cut: the first %d of %d bytes", MostPart, len(p.Content)))
		p.Content = p.Content[:MostPart]
		if i := bytes.LastIndexAny(p.Content, " \n\t\","); i > 0 { // half an address could not be known for one
			p.Content = p.Content[:i+1]
		}
	}
	if b.size+len(p.Content) > MostAll || len(b.parts) >= MostFile {
		b.dropped++
		return
	}
	b.size += len(p.Content)
	b.parts = append(b.parts, p)
}

// Failed are the parts that are missing or not complete, in words.
func (b *Bundle) Failed() (lines []string) {
	for _, p := range b.parts {
		if p.Err != nil {
			lines = append(lines, p.Name+": "+strings.ReplaceAll(p.Err.Error(), "\n", "; "))
		}
	}
	if b.dropped > 0 {
		lines = append(lines, fmt.Sprintf("%d parts are left out: a bundle has at most %d MiB and %d parts", b.dropped,
			MostAll>>20, MostFile))
	}
	return lines
}

// Write writes the bundle, and returns how many files it has.
func (b *Bundle) Write(out io.Writer) (files int, err error) {
	mask := func(text string) string { return text }
	if b.Mask {
		mask = NewMask(b.Key, b.Names).Text
	}
	s := newSecrets()
	for i := range b.parts { // all are looked through before any is written: one may quote what is secret in another
		p := &b.parts[i]
		if p.Content = s.clean(p.Content); p.Err != nil {
			p.Err = errors.New(s.line(p.Err.Error()))
		}
	}
	failed := b.Failed()
	hide := func(text string) string { return mask(s.forget(text)) }
	gz := gzip.NewWriter(out)
	w := tar.NewWriter(gz)
	index, taken := &bytes.Buffer{}, map[string]bool{"README": true}
	var bodies [][]byte
	var names []string
	for _, p := range b.parts {
		name := unique(safeName(hide(p.Name)), taken)
		body := []byte(hide(unpacked(string(p.Content), b.Mask)))
		if p.Err != nil && len(body) == 0 {
			name, body = unique(name+".error", taken), []byte(hide(p.Err.Error()+"\n"))
		}
		fmt.Fprintf(index, "%-40s %8d  %s\n", name, len(body), hide(p.About))
		names, bodies = append(names, name), append(bodies, body)
	}
	readme := hide(b.About) + "\n" + b.promise() + "\nFILES, with their sizes in bytes\n\n" + index.String()
	if len(failed) > 0 {
		readme += "\nNOT COLLECTED, OR NOT COMPLETE\n\n" + hide(strings.Join(failed, "\n")) + "\n"
	}
	names, bodies = append([]string{"README"}, names...), append([][]byte{[]byte(readme)}, bodies...)
	for i, name := range names {
		err = cmp.Or(err, w.WriteHeader(&tar.Header{Name: Top + "/" + name, Mode: 0o600, Size: int64(len(bodies[i])),
			ModTime: b.When, Format: tar.FormatPAX}))
		if err == nil {
			_, err = w.Write(bodies[i])
		}
	}
	return len(names), errors.Join(err, w.Close(), gz.Close())
}

// promise says what is hidden.
func (b *Bundle) promise() string {
	text := "Values of keys such as password, token and secret were removed, in files, arguments and environments.\n"
	if b.Mask {
		return text + "Addresses, MACs and the names of pods, containers and the host " +
			"are replaced, each by the same other\n" +
			"one everywhere. Addresses that were in one subnet still are.\n"
	}
	return text + "Addresses and names are as they were; --mask replaces them.\n"
}

// safeName is a path without steps upwards and without what is no picture.
func safeName(name string) string {
	parts := strings.Split(path.Clean("/" + name)[1:], "/")
	for i, p := range parts {
		if parts[i] = strings.Map(func(r rune) rune {
			if unicode.IsPrint(r) && !strings.ContainsRune(`\:*?"<>|`, r) {
				return r
			}
			return '_'
		}, p); len(parts[i]) > 120 {
			parts[i] = strings.ToValidUTF8(parts[i][:120], "_")
		}
	}
	return strings.Join(parts, "/")
}

// unique is a name that no other file has.
func unique(name string, taken map[string]bool) string {
	to := name
	for n := 2; taken[to]; n++ {
		to = fmt.Sprintf("%s-%d", name, n)
	}
	taken[to] = true
	return to
}

// unpacked is text in which nothing that could be an address is hidden as bytes, where that counts.
func unpacked(text string, mask bool) string {
	if !mask {
		return text
	}
	packed := regexp.MustCompile(`"[A-Za-z0-9+/]{5,}={0,2}"(\s*:)?`)
	return packed.ReplaceAllStringFunc(text, func(q string) string {
		s, key := strings.CutSuffix(q, ":")
		s = strings.Trim(s, "\" \n")
		if key {
			return q
		}
		mixed := strings.ContainsAny(s, "+=") || strings.ToLower(s) != s && strings.ToUpper(s) != s
		bytes, err := base64.StdEncoding.DecodeString(s)
		if err != nil || !mixed { // lower-case letters alone are a word, or a path
			return q
		}
		return fmt.Sprintf(`"(%d bytes masked)"`, len(bytes))
	})
}
