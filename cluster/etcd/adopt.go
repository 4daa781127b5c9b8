package etcd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
)

// MostAdopted is how many blocks a node adopts at once: etcd compares 128 entries in a transaction.
const MostAdopted = 62

// A RefusedAdoption says why a node does not get blocks in which its containers have addresses. It got none of them.
type RefusedAdoption struct {
	Blocks map[netip.Prefix]string `json:"blocks,omitempty"` // why, by the blocks of which it is known
	Why    string                  `json:"why,omitempty"`    // where the reason is not of single blocks
	Hint   string                  `json:"hint"`             // what to do
}

func (r *RefusedAdoption) Error() string {
	var texts []string
	for _, block := range slices.SortedFunc(maps.Keys(r.Blocks), netip.Prefix.Compare) {
		texts = append(texts, fmt.Sprintf("%v: %s", block, r.Blocks[block]))
	}
	return cmp.Or(r.Why, strings.Join(texts, "; "))
}

// Adopt has the member claim these very blocks in one transaction, and returns when the grant has them. With dry it claims
// nothing, and says what is known to be in the way. The error may be a [RefusedAdoption].
func (m *Member) Adopt(ctx context.Context, all []netip.Prefix, dry bool) error {
	return m.ask(ctx, &ask{adopts: all, dry: dry})
}

// adopted returns the blocks that a call of Adopt wants, or why the node cannot have them.
func (m *Member) adopted(o *blocks.Owner, a *ask) (pin blocks.Pin, refused *RefusedAdoption) {
	refused = &RefusedAdoption{Blocks: map[netip.Prefix]string{}}
	if m.View.Drains(o.Journal().Node) {
		refused.Why = "the node is drained: it claims no addresses"
		refused.Hint = "`fairlead cluster drain --undo " + m.Host.Name + "` ends that."
		return nil, refused
	}
	pools := m.pools(o)
	for _, block := range a.adopts {
		i := slices.IndexFunc(pools, func(p blocks.Pool) bool { return p.Prefix.Contains(block.Addr()) && p.Bits == block.Bits() })
		if i < 0 {
			refused.Blocks[block] = "it is of no pool that this node may use (--pool of fairlead-agent)"
			refused.Hint = "`fairlead cluster pools` lists the pools."
			continue
		}
		h := pools[i].Whole(block)
		pin = append(pin, h)
		if slices.Contains(o.Granted(), h) {
			continue
		}
		if by := m.inWay(o, h); by != "" {
			refused.Blocks[block] = by
			refused.Hint = "Two containers may have one address there already. If each node has the same subnet, nothing can be taken " +
				"over: add a pool (`fairlead cluster pools add`), attach containers anew to its network, and let the former network end."
		} else if err := m.fits(block); err != nil {
			refused.Blocks[block] = "it " + err.Error()
			refused.Hint = "Containers at a bridge with that network would not reach those of this one. Attach them anew, and remove " +
				"the link or the route; or add another pool, and let the former network end."
		}
	}
	if len(refused.Blocks) > 0 {
		return nil, refused
	}
	return pin, nil
}

// fits says what a prefix overlaps on this host.
func (m *Member) fits(p netip.Prefix) error {
	if m.Fit == nil {
		return nil
	}
	return m.Fit(p)
}

// inWay says which other node has a block, or a part of it. Empty: none, as far as the store told.
func (m *Member) inWay(o *blocks.Owner, h blocks.Holding) string {
	names := m.View.Names()
	grave := m.View.get(blocks.Key{Kind: blocks.GraveKey, Pool: h.Pool, Block: h.Block})
	block := m.View.get(blocks.Key{Kind: blocks.BlockKey, Pool: h.Pool, Block: h.Block})
	switch taken := o.TakenBy(h); taken.Key.Kind {
	case blocks.GraveKey:
		grave = taken
	case blocks.BlockKey:
		block = taken
	}
	var others []string
	for _, owner := range block.Value.Owners {
		if owner != "" && owner != o.Journal().Node && !slices.Contains(others, owner) {
			others = append(others, owner)
		}
	}
	switch {
	case len(others) > 0:
		for i, owner := range others {
			others[i] = cmp.Or(names[owner], owner)
		}
		return "node " + strings.Join(others, " and node ") + " owns it, or a part of it"
	case grave.Revision != 0:
		return "it rests for ten minutes, because node " + cmp.Or(names[grave.Value.Node], grave.Value.Node) + ", which owned it, was forgotten"
	}
	return ""
}

// answerAdopt answers a call of Adopt when the owner has nothing to do, or something failed, which why says.
func (m *Member) answerAdopt(o *blocks.Owner, a *ask, why, hint string) error {
	pin, refused := m.adopted(o, a)
	_, mayWrite := o.Standing()
	isMissing := slices.ContainsFunc(pin, func(h blocks.Holding) bool { return !slices.Contains(o.Granted(), h) })
	switch {
	case refused != nil:
		return refused
	case !mayWrite || isMissing && !a.dry:
		why = cmp.Or(why, "etcd does not say yet who has the blocks")
		return &RefusedAdoption{Why: why, Hint: cmp.Or(hint, "Try again.")}
	}
	return nil
}

// ServeAdopt answers [AskAdopt].
func (m *Member) ServeAdopt(w http.ResponseWriter, r *http.Request) {
	var all []netip.Prefix
	for _, text := range r.URL.Query()["block"] {
		block, err := netip.ParsePrefix(text)
		if err != nil || block != block.Masked() {
			http.Error(w, fmt.Sprintf("block: %q is not a block", text), http.StatusBadRequest)
			return
		}
		all = append(all, block)
	}
	if len(all) > MostAdopted {
		http.Error(w, fmt.Sprintf("%d blocks: want at most %d", len(all), MostAdopted), http.StatusBadRequest)
		return
	}
	err := m.Adopt(r.Context(), all, r.URL.Query().Has("dry"))
	var refused *RefusedAdoption
	switch {
	case errors.As(err, &refused):
		w.WriteHeader(http.StatusConflict)
		_ = json.NewEncoder(w).Encode(refused) // who asked may be gone
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
}

// AdoptPattern is at which requests an agent calls ServeAdopt.
const AdoptPattern = "POST /adopt"

// AskAdopt has the agent of a network on this host call Adopt. The error may be a [RefusedAdoption].
func AskAdopt(ctx context.Context, network string, all []netip.Prefix, dry bool) error {
	ctx, stop := context.WithTimeout(ctx, 2*patience)
	defer stop()
	socket := grant.Socket(network)
	var d net.Dialer
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialContext(ctx, "unix", socket) }}}
	q := url.Values{}
	for _, block := range all {
		q.Add("block", block.String())
	}
	if dry {
		q.Set("dry", "")
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://agent/adopt?"+q.Encode(), nil)
	if err != nil {
		return err
	}
	resp, err := c.Do(r)
	if err != nil {
		var of *url.Error // whose URL says nothing to people
		if errors.As(err, &of) {
			err = of.Err
		}
		return fmt.Errorf("the agent of network %s does not answer: %w: start fairlead-agent on this node, or name the network of its --network", network, err)
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		return nil
	case http.StatusConflict:
		refused := &RefusedAdoption{}
		if err := json.NewDecoder(resp.Body).Decode(refused); err == nil {
			return refused
		}
	}
	return fmt.Errorf("the agent of network %s (%s) adopts nothing: %s", network, socket, resp.Status)
}
