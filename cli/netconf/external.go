package netconf

import (
	"context"
	"sync"

	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// Externals returns a function that finds plugins of other projects which answer Fairlead's extra verbs
// (sdk/extension.go). It asks each file once, and returns nil for a plugin of this project.
func Externals() func(ctx context.Context, l *spec.List, typ string) *sdk.External {
	known := map[string]*sdk.External{}
	var mu sync.Mutex
	return func(ctx context.Context, l *spec.List, typ string) *sdk.External {
		mu.Lock()
		defer mu.Unlock()
		dirs, _ := Search(&Network{List: l})
		path, err := invoke.Find(typ, dirs)
		if err != nil {
			return nil
		}
		x, asked := known[path]
		if !asked && !OurProgram(path) {
			x = sdk.AskExternal(ctx, path, invoke.Call{Type: typ, Path: dirs})
		}
		known[path] = x
		return x
	}
}

// Foreign returns a function that says why the program of a plugin is not of this project; "" if it is.
func Foreign() func(l *spec.List, typ string) string {
	known := map[string]string{}
	var mu sync.Mutex
	return func(l *spec.List, typ string) string {
		mu.Lock()
		defer mu.Unlock()
		dirs, _ := Search(&Network{List: l})
		path, err := invoke.Find(typ, dirs)
		if err != nil {
			return "" // fairlead itself stands in
		}
		why, ok := known[path]
		if !ok {
			if !OurProgram(path) {
				why = path + " is another program of that name"
			}
			known[path] = why
		}
		return why
	}
}
