package netconf

import (
	"context"
	"sync"

	"github.com/fairlead-cni/fairlead/internal/extra"
	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/spec"
)

// Externals returns a function that finds plugins of other projects which answer Fairlead's extra verbs
// (sdk/extension.go). It asks each file once, and returns nil for a plugin of this project.
func Externals() func(ctx context.Context, l *spec.List, typ string) *extra.External {
	return byProgram(func(ctx context.Context, path string, c invoke.Call) *extra.External {
		if OurProgram(path) {
			return nil
		}
		return extra.Ask(ctx, path, c)
	})
}

// Foreign returns a function that says why the program of a plugin is not of this project; "" if it is.
func Foreign() func(l *spec.List, typ string) string {
	why := byProgram(func(_ context.Context, path string, _ invoke.Call) string {
		if OurProgram(path) {
			return ""
		}
		return path + " is another program of that name"
	})
	return func(l *spec.List, typ string) string { return why(context.Background(), l, typ) }
}

// byProgram returns a function that finds the program of a plugin and examines each file once. Its answer is zero if
// there is no file: fairlead itself stands in.
func byProgram[T any](examine func(ctx context.Context, path string, c invoke.Call) T) func(ctx context.Context,
	l *spec.List, typ string) T {
	known := map[string]T{}
	var mu sync.Mutex
	return func(ctx context.Context, l *spec.List, typ string) (answer T) {
		mu.Lock()
		defer mu.Unlock()
		dirs, _ := Search(&Network{List: l})
		path, err := invoke.Find(typ, dirs)
		if err != nil {
			return answer
		}
		answer, examined := known[path]
		if !examined {
			answer = examine(ctx, path, invoke.Call{Type: typ, Path: dirs})
			known[path] = answer
		}
		return answer
	}
}
