package invoke

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	"github.com/fairlead-cni/fairlead/spec"
)

// Versions asks the plugin at path which versions of the protocol it supports (clause V1). Only the environment of c
// and its names for error messages are used. A plugin older than VERSION refuses the command and supports 0.1.0. One
// that answers 0.2.0 without a list supports 0.1.0 and 0.2.0.
func Versions(ctx context.Context, run Runner, path string, c Call) ([]spec.Version, error) {
	stdout, err := Version(ctx, run, path, c, nil)
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
	return answer.SupportedVersions, nil
}

// Version returns the plugin's answer to VERSION as it prints it. Asks is added to standard input beside cniVersion:
// members that are not part of the protocol, and that only plugins answer that know them.
func Version(ctx context.Context, run Runner, path string, c Call, asks map[string]any) ([]byte, error) {
	stdin := map[string]any{"cniVersion": spec.Newest}
	maps.Copy(stdin, asks)
	c.Command = "VERSION"
	c.Stdin, _ = json.Marshal(stdin)
	// Plugins of the oldest libraries look for these before they look at the command.
	c.ContainerID, c.Netns, c.IfName, c.Args = "dummy", "dummy", "dummy", ""
	if len(c.Path) == 0 {
		c.Path = []string{"dummy"}
	}
	return run(ctx, path, c)
}
