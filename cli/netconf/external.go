package netconf

import (
	"context"
	"sync"

	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// Externals finds, once for each file, the plugins of other programs that can be asked for more than CNI has verbs for.
// It is nil for one of ours.
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

// Foreign says of a plugin whether the program that would run for it is another's.
func Foreign() func(l *spec.List, typ string) string {
	known := map[string]string{}
	var mu sync.Mutex
	return func(l *spec.List, typ string) string {
		mu.Lock()
		defer mu.Unlock()
		dirs, _ := Search(&Network{List: l})
		path, err := invoke.Find(typ, dirs)
		if err != nil {
			return "" // then it is fairlead itself
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
