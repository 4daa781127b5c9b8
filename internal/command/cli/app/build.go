package app

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/fairlead-cni/fairlead/spec"
)

// build is what is known of how this program was built.
type build struct {
	Version     string         `json:"version"`
	CNIVersions []spec.Version `json:"cniVersions"`
	Go          string         `json:"go"`
	Platform    string         `json:"platform"`
	Revision    string         `json:"revision,omitempty"` // commit of the source; -dirty if it was changed
}

// Built returns what the toolchain recorded of this program, with the version it was given.
func Built(version string) build {
	b := build{Version: version, CNIVersions: spec.Versions(), Go: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, _ := debug.ReadBuildInfo()
	if info == nil {
		return b
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			b.Revision = s.Value + b.Revision
		case s.Key == "vcs.modified" && s.Value == "true":
			b.Revision += "-dirty"
		}
	}
	return b
}

// Program returns the build in one line.
func (b build) Program() string {
	return fmt.Sprintf("built with %s for %s%s", b.Go, b.Platform, Prefixed(" from ", b.Revision))
}
