package resource

import (
	"context"
	"strings"
	"sync"
)

// known is what of the tables one run over many attachments has compared rule by rule already, and need not look at
// again for each of them. What is flushed afterwards is noticed in the end, see Guarded.
type known struct {
	mu    sync.Mutex
	parts map[string]bool
}

type knownKey struct{}

// Together is a context for ensuring many attachments' resources: what they share is compared thoroughly, and
// once.
func Together(ctx context.Context) context.Context {
	return context.WithValue(ctx, knownKey{}, &known{parts: map[string]bool{}})
}

func knownOf(ctx context.Context) *known {
	k, _ := ctx.Value(knownKey{}).(*known)
	return k
}

// has reports whether a part, and what always stands in its table, have been seen to.
func (k *known) has(p *part) bool {
	if k == nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.parts[p.id()]
}

func (k *known) add(p *part) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.parts[p.id()] = true
}

// id tells parts apart: their chains and sets are named after what they do.
func (p *part) id() string {
	names := []string{p.String()}
	for _, c := range p.Chains {
		names = append(names, c.Name)
	}
	for _, s := range p.Sets {
		names = append(names, s.Name)
	}
	return strings.Join(names, " ")
}
