// Package txtar reads and writes files of test data in the format of golang.org/x/tools/txtar: a comment, and after
// each line "-- NAME --" a file. Package sdk/sdktest links it, so the format must not bring a module to authors of
// plugins.
package txtar

import (
	"os"
	"strings"
)

// A File is one file of an archive.
type File struct{ Name, Data string }

// An Archive is a comment and files in their order.
type Archive struct {
	Comment string
	Files   []File
}

// Parse takes an archive apart. Every text is an archive.
func Parse(text string) Archive {
	var a Archive
	data := &a.Comment
	for line := range strings.Lines(text) {
		name, isMarker := strings.CutPrefix(strings.TrimSpace(line), "-- ")
		name, closed := strings.CutSuffix(name, " --")
		if !isMarker || !closed {
			*data += line
			continue
		}
		a.Files = append(a.Files, File{Name: strings.TrimSpace(name)})
		data = &a.Files[len(a.Files)-1].Data
	}
	return a
}

// ParseFile takes the archive in a file apart.
func ParseFile(path string) (Archive, error) {
	text, err := os.ReadFile(path)
	return Parse(string(text)), err
}

// Parts are the files by name, and the comment by "".
func (a Archive) Parts() map[string]string {
	parts := map[string]string{"": a.Comment}
	for _, f := range a.Files {
		parts[f.Name] = f.Data
	}
	return parts
}

// String is what Parse takes apart. Each part ends with a newline.
func (a Archive) String() string {
	var b strings.Builder
	write := func(data string) {
		b.WriteString(data)
		if data != "" && !strings.HasSuffix(data, "\n") {
			b.WriteByte('\n')
		}
	}
	write(a.Comment)
	for _, f := range a.Files {
		b.WriteString("-- " + f.Name + " --\n")
		write(f.Data)
	}
	return b.String()
}
