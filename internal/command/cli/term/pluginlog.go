package term

import (
	"strconv"
	"strings"
)

// reformat rewrites a line of a plugin's log, as slog writes it, to the form of this program's messages. It returns any
// other line unchanged.
func reformat(line string) string {
	if strings.HasPrefix(line, "warning: ") { // from package attach
		return "fairlead: " + line
	}
	values, rest := map[string]string{}, line
	var more []string
	for rest != "" {
		key := ""
		if quoted, err := strconv.QuotedPrefix(rest); err == nil { // the value has a space
			key, _ = strconv.Unquote(quoted)
			rest = rest[len(quoted):]
		}
		name, value, ok := strings.Cut(rest, "=")
		key += name
		if !ok || strings.ContainsAny(name, " \"") || values["level"] == "" && key != "level" {
			return line
		}
		if quoted, err := strconv.QuotedPrefix(value); err == nil {
			rest = strings.TrimPrefix(value[len(quoted):], " ")
			value, _ = strconv.Unquote(quoted)
		} else {
			value, rest, _ = strings.Cut(value, " ")
		}
		values[key] = value
		if key != "level" && key != "msg" && key != "network" && key != "plugin" {
			more = append(more, ", "+key+" "+value)
		}
	}
	text := "fairlead: "
	switch values["level"] {
	case "":
		return line
	case "WARN":
		text += "warning: "
	case "ERROR":
		text += "error: "
	}
	if values["network"] != "" {
		text += "network " + values["network"] + ": "
	}
	if values["plugin"] != "" {
		text += values["plugin"] + ": "
	}
	return text + values["msg"] + strings.Join(more, "")
}
