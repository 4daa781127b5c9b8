package calls

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Where the setting stands: the variable of the environment counts before the key of the file.
const (
	Variable = "FAIRLEAD_LOG"
	Settings = "/etc/cni/fairlead.json"
	Key      = "log"
)

// CommandsKey is the key of the file by which a node lets network configurations execute programs and write any file.
const CommandsKey = "debugCommands"

// File receives the lines if no journald runs, unless the setting names another file.
const File = "/var/log/fairlead/calls.log"

// Where lines can go.
const (
	ToJournal = "journald"
	ToFile    = "file"
)

// A Setting says which calls are logged, and where.
type Setting struct {
	On     bool   // calls are written down
	Errors bool   // only those that failed
	To     string // journald, file, or the path of a file; empty: journald where it runs, else File
	Size   int64  // bytes that the files take at most, all together
}

const (
	defaultSize = 20 << 20
	minSize     = 4 * maxLine
	maxSettings = 64 << 10
)

const wanted = "want off, errors or all, where to (journald, file or a path), and a size such as 20M, with commas " +
	"between them"

// Parse reads a setting: words separated by commas, in any order. The words off, errors and all select calls. The words
// journald and file, or a path, select the place. A number with K, M or G limits the size of the files. A place or a
// size alone means all calls.
func Parse(text string) (Setting, error) {
	s, level := Setting{On: true, Size: defaultSize}, ""
	for word := range strings.SplitSeq(text, ",") {
		word = strings.TrimSpace(word)
		twice := false
		switch lower := strings.ToLower(word); {
		case lower == "off" || lower == "errors" || lower == "all":
			twice, level = level != "", lower
		case lower == ToJournal || lower == ToFile:
			twice, s.To = s.To != "", lower
		case strings.HasPrefix(word, "/"):
			twice, s.To = s.To != "", word
		default:
			size, err := parseSize(word)
			if err != nil {
				return Setting{}, fmt.Errorf("%q: %w", text, err)
			}
			s.Size = size
		}
		if twice {
			return Setting{}, fmt.Errorf("%q: %q repeats an earlier word; %s", text, word, wanted)
		}
	}
	s.On, s.Errors = level != "off", level == "errors"
	return s, nil
}

func parseSize(word string) (int64, error) {
	digits, shift := word, 0
	if n := len(word) - 1; n > 0 {
		if i := strings.IndexByte("KMG", word[n]&^0x20); i >= 0 {
			digits, shift = word[:n], 10*(i+1)
		}
	}
	n, err := strconv.ParseUint(digits, 10, 32)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%q is not known: %s", word, wanted)
	case int64(n)<<shift < minSize:
		return 0, fmt.Errorf("%s is too small: want %dK or more", word, minSize>>10)
	}
	return int64(n) << shift, nil
}

// Read returns the setting in force: FAIRLEAD_LOG in environ, or else the key log in /etc/cni/fairlead.json. The error
// has place and value of an invalid setting; nothing is logged then.
func Read(environ []string) (Setting, error) { return inForce(environ, ReadFile) }

func inForce(environ []string, file func() (Setting, error)) (Setting, error) {
	if text := value(environ, Variable); text != "" {
		s, err := Parse(text)
		if err != nil {
			err = fmt.Errorf("environment: %s %w", Variable, err)
		}
		return s, err
	}
	return file()
}

// ReadFile returns the setting in /etc/cni/fairlead.json; nothing is logged if the file does not exist.
func ReadFile() (s Setting, err error) {
	doc, err := readSettings(Settings)
	if err == nil && doc == nil {
		return Setting{}, nil
	}
	if err == nil {
		s, err = decode(doc)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", Settings, err)
	}
	return s, err
}

// value returns the value of a variable. The last one counts, as for os/exec.
func value(environ []string, name string) string {
	for _, kv := range slices.Backward(environ) {
		if len(kv) > len(name) && kv[len(name)] == '=' && kv[:len(name)] == name {
			return kv[len(name)+1:]
		}
	}
	return ""
}

// readSettings returns the content of the file, or nil if it does not exist. Each call of a plugin reads it; a missing
// file costs one system call.
func readSettings(path string) ([]byte, error) {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0) // a pipe is not waited for
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer syscall.Close(fd)
	b := make([]byte, 0, 4<<10)
	for { // package os would set the runtime's poller up for it
		n, err := syscall.Read(fd, b[len(b):cap(b)])
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			return nil, err
		case n == 0:
			return b, nil
		}
		if b = b[:len(b)+n]; len(b) > maxSettings {
			return nil, fmt.Errorf("more than %d bytes", maxSettings)
		}
		b = slices.Grow(b, 1)
	}
}

// CommandsAllowed reports whether this node lets network configurations execute programs and write any file as root,
// by the plugin debug: the key debugCommands in /etc/cni/fairlead.json is true. The file is the administrator's; no
// configuration and no variable takes its place. What cannot be read does not allow it.
func CommandsAllowed() (bool, error) {
	doc, err := readSettings(Settings)
	if err == nil && doc == nil {
		return false, nil
	}
	var keys map[string]json.RawMessage
	if err == nil {
		keys, err = parseKeys(doc)
	}
	allowed := false
	if raw, there := keys[CommandsKey]; err == nil && there {
		if err = json.Unmarshal(raw, &allowed); err != nil {
			err = fmt.Errorf("%s: %s: want true or false", CommandsKey, raw)
		}
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", Settings, err)
	}
	return allowed, nil
}

func parseKeys(doc []byte) (keys map[string]json.RawMessage, err error) {
	if err := json.Unmarshal(bytes.TrimSpace(doc), &keys); err != nil {
		return nil, fmt.Errorf("want an object with the keys %s and %s: %w", Key, CommandsKey, err)
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if key != Key && key != CommandsKey {
			return nil, fmt.Errorf("%s: unknown key; the keys are %s and %s", key, Key, CommandsKey)
		}
	}
	return keys, nil
}

// decode reads the document with the settings.
func decode(doc []byte) (Setting, error) {
	keys, err := parseKeys(doc)
	if err != nil {
		return Setting{}, err
	}
	raw, there := keys[Key]
	var text string
	switch err := json.Unmarshal(raw, &text); {
	case !there || string(raw) == "null" || err == nil && text == "":
		return Setting{}, nil
	case err != nil:
		return Setting{}, fmt.Errorf("%s: %s: want a text, such as \"all\"", Key, raw)
	}
	s, err := Parse(text)
	if err != nil {
		err = fmt.Errorf("%s: %w", Key, err)
	}
	return s, err
}
