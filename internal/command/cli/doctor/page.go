package doctor

import (
	"bytes"
	_ "embed" // the introduction
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/command/cli/advice"
)

// code returns a command as Markdown marks it; a sentence stays as it is.
func code(text string) string {
	if text == advice.Remakes || strings.Contains(text, "`") || strings.HasPrefix(text, "(depends") {
		return text
	}
	return "`" + text + "`"
}

// introduction is the page up to the findings.
//
//go:embed page.md
var introduction string

// Page returns docs/doctor.md: how to use doctor, and an entry for each kind of finding.
func Page() []byte {
	b := bytes.NewBufferString(introduction)
	titles := map[string]string{OnHost: "On the host", onNetwork: "Of networks", onContainer: "Of containers",
		fault: "Fault", warning: "Warning"}
	section := ""
	for _, k := range FindingKinds() {
		if k.section != section {
			section = k.section
			fmt.Fprintf(b, "## %s\n\n", titles[section])
		}
		fmt.Fprintf(b, "### %s\n\n%s: %s.\n\n%s\n\n", k.ID, titles[k.severity()], k.What, k.Why)
		if len(k.causes) > 0 {
			var names []string
			for _, cause := range slices.Sorted(maps.Keys(k.causes)) {
				names = append(names, "`"+string(cause)+"`")
			}
			fmt.Fprintf(b, "Not beside: %s.\n\n", strings.Join(names, ", "))
		}
		for _, advised := range []struct{ word, text string }{{"Fix", k.Fix}, {"Look", k.Look}} {
			if advised.text != "" {
				fmt.Fprintf(b, "%s: %s\n\n", advised.word, code(advised.text))
			}
		}
	}
	return append(bytes.TrimRight(b.Bytes(), "\n"), '\n')
}
