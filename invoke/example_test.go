package invoke_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/spec"
)

// Find a plugin, ask which versions it speaks, and run it. What it refuses with is a *spec.Error.
func ExampleRun() {
	dir, err := script(`
case $CNI_COMMAND in
VERSION) echo '{"cniVersion": "1.1.0", "supportedVersions": ["1.0.0", "1.1.0"]}' ;;
*) echo '{"cniVersion": "1.1.0", "code": 11, "msg": "no address is left"}'; exit 1 ;;
esac`)
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)

	ctx := context.Background()
	path, err := invoke.Find("toy", []string{"/does/not/exist", dir})
	if err != nil {
		panic(err)
	}
	speaks, err := invoke.Versions(ctx, invoke.Run, path, invoke.Call{})
	if err != nil {
		panic(err)
	}
	fmt.Println(speaks)
	_, err = invoke.Run(ctx, path, invoke.Call{Command: "ADD", ContainerID: "web", Netns: "/run/netns/web", IfName: "eth0",
		Path: []string{dir}, Stdin: []byte(`{"cniVersion": "1.1.0", "name": "lan", "type": "toy"}`)})
	var refused *spec.Error
	fmt.Println(errors.As(err, &refused), refused.Code == spec.CodeTryAgain, refused.Msg)
	// Output:
	// [1.0.0 1.1.0]
	// true true no address is left
}

// script is a directory with a plugin called toy.
func script(text string) (dir string, err error) {
	if dir, err = os.MkdirTemp("", "plugins"); err == nil {
		err = os.WriteFile(filepath.Join(dir, "toy"), []byte("#!/bin/sh\n"+text), 0o755)
	}
	return dir, err
}
