package sdk

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/extra"
	"github.com/fairlead-cni/fairlead/spec"
)

// Version is the version of this program: build, which is what its linker was told, or else the version of the module
// as `go install MODULE@VERSION` records it, or else devel.
func Version(build string) string {
	if build != "" {
		return build
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "devel"
	}
	return info.Main.Version
}

// release returns the version of this program if it names one state of the source, else "": git and the toolchain mark
// a changed one as dirty.
func release(version string) string {
	if version == "devel" || version == "unknown" || strings.Contains(version, "dirty") {
		return ""
	}
	return version
}

// versionOf returns the version in a configuration that could not be parsed, as far as it is visible.
func versionOf(stdin []byte) spec.Version {
	var v struct{ CNIVersion spec.Version }
	if json.Unmarshal(stdin, &v) == nil && v.CNIVersion.Or010().Known() {
		return v.CNIVersion.Or010()
	}
	return spec.Newest
}

// askedVersion reads standard input for VERSION. It does not read from a terminal, where the input would not end.
func askedVersion() (stdin []byte) {
	if st, err := os.Stdin.Stat(); err == nil && st.Mode()&os.ModeCharDevice == 0 {
		if in, err := io.ReadAll(io.LimitReader(os.Stdin, maxConf)); err == nil {
			return in
		}
	}
	return nil
}

// versions answers VERSION (clauses V1, V2), and adds the plugin's Offer if the input asks for it. Build is the version
// of the program.
func versions(p Plugin, build string, stdin []byte) ([]byte, error) {
	info := spec.VersionInfo{CNIVersion: spec.Newest, SupportedVersions: spec.Versions()}
	var asked struct {
		CNIVersion spec.Version
		Fairlead   json.RawMessage
	}
	if len(stdin) > 0 && json.Unmarshal(stdin, &asked) == nil {
		info.CNIVersion = cmp.Or(asked.CNIVersion, spec.Newest)
		if asked.Fairlead != nil {
			out, err := json.Marshal(struct {
				spec.VersionInfo
				Offer extra.Offer `json:"fairlead"`
			}{info, p.offer(Version(build))})
			return append(out, '\n'), err
		}
	}
	out, err := info.Encode()
	return append(out, '\n'), err
}

const hintVersion = "Change cniVersion in the network's configuration; `fairlead version NET` says what each plugin " +
	"speaks."

// speaks refuses verbs that the version does not have (clauses V3, V8, V9).
func speaks(verb string, v spec.Version) error {
	if !v.Known() {
		return &spec.Error{Code: spec.CodeVersion, Msg: fmt.Sprintf("cniVersion %q is not spoken here", v),
			Details: "this plugin speaks " + join4(spec.Versions()), Hint: hintVersion}
	}
	since := spec.V010
	switch verb {
	case "CHECK":
		since = spec.V040
	case "GC", "STATUS":
		since = spec.V110
	}
	if !v.AtLeast(since) {
		return &spec.Error{Code: spec.CodeVersion,
			Msg:  fmt.Sprintf("%s came with CNI %s, and the configuration's cniVersion is %s", verb, since, v),
			Hint: hintVersion}
	}
	return nil
}

func join4(vs []spec.Version) string {
	var s []string
	for _, v := range vs {
		s = append(s, string(v))
	}
	return strings.Join(s, ", ")
}
