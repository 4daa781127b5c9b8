package invoke

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/fairlead-cni/fairlead/spec"
)

// Versions asks the plugin at path which versions of the protocol it speaks (clause V1). Of c the
// environment counts and what errors should name. A plugin from before VERSION, which refuses the
// command, speaks 0.1.0; one that lists no versions and says 0.2.0 speaks 0.1.0 and 0.2.0.
func Versions(ctx context.Context, run Runner, path string, c Call) ([]spec.Version, error) {
	c.Command = "VERSION"
	c.Stdin, _ = json.Marshal(map[string]spec.Version{"cniVersion": spec.Newest})
	// Plugins of the oldest libraries look for these before they look at the command.
	c.ContainerID, c.Netns, c.IfName, c.Args = "dummy", "dummy", "dummy", ""
	if len(c.Path) == 0 {
		c.Path = []string{"dummy"}
	}
	stdout, err := run(ctx, path, c)
	if err != nil {
		var doc *spec.Error
		if errors.As(err, &doc) && doc.Msg == "unknown CNI_COMMAND: VERSION" {
			return []spec.Version{spec.V010}, nil
		}
		return nil, err
	}
	var answer spec.VersionInfo
	if err := json.Unmarshal(stdout, &answer); err != nil {
		return nil, fmt.Errorf("plugin %s VERSION: decode answer: %w", path, err)
	}
	switch {
	case len(answer.SupportedVersions) > 0:
		return answer.SupportedVersions, nil
	case answer.CNIVersion == spec.V020:
		return []spec.Version{spec.V010, spec.V020}, nil
	}
	return nil, fmt.Errorf("plugin %s VERSION: no supportedVersions in the answer", path)
}
