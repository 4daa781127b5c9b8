// Package nameserver answers containers' questions for each other's names, on the gateway addresses of their networks,
// from the records that the plugin alias writes. It forwards all other questions.
package nameserver

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/fairlead-cni/fairlead/resource/names"
)

// index holds the records in memory, organised for queries.
type index struct {
	mu         sync.RWMutex
	records    map[string]*names.Record // by names.RecordOf
	zones      map[string]*zone         // by network
	gateways   map[netip.Addr]map[*zone]int
	containers map[string]map[*zone]int // the networks of a container
}

// zone is the names of a network.
type zone struct {
	network string
	size    int
	names   map[string][]*names.Record // the containers' own
	aliases map[string][]*names.Record
	addrs   map[netip.Addr][]*names.Record
	subnets map[netip.Prefix]int
	domains map[string]int
}

func newIndex() *index {
	return &index{records: map[string]*names.Record{}, zones: map[string]*zone{},
		gateways: map[netip.Addr]map[*zone]int{}, containers: map[string]map[*zone]int{}}
}

// put stores a record under key, and replaces the one there; nil removes it.
func (x *index) put(key string, r *names.Record) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if old := x.records[key]; old != nil {
		x.remove(old)
		delete(x.records, key)
	}
	if r != nil {
		x.records[key] = r
		x.insert(r)
	}
}

func (x *index) insert(r *names.Record) {
	z := x.zones[r.Network]
	if z == nil {
		z = &zone{network: r.Network, names: map[string][]*names.Record{}, aliases: map[string][]*names.Record{},
			addrs: map[netip.Addr][]*names.Record{}, subnets: map[netip.Prefix]int{}, domains: map[string]int{}}
		x.zones[r.Network] = z
	}
	z.size++
	for _, n := range r.Names {
		z.names[n] = append(z.names[n], r)
	}
	for _, n := range r.Aliases {
		z.aliases[n] = append(z.aliases[n], r)
	}
	for _, p := range r.Addrs {
		z.addrs[p.Addr()] = append(z.addrs[p.Addr()], r)
		z.subnets[p.Masked()]++
	}
	if r.Domain != "" {
		z.domains[r.Domain]++
	}
	for _, g := range r.Gateways {
		more(x.gateways, g, z)
	}
	more(x.containers, r.ContainerID, z)
}

func (x *index) remove(r *names.Record) {
	z := x.zones[r.Network]
	if z.size--; z.size == 0 {
		delete(x.zones, r.Network)
	}
	for _, n := range r.Names {
		without(z.names, n, r)
	}
	for _, n := range r.Aliases {
		without(z.aliases, n, r)
	}
	for _, p := range r.Addrs {
		without(z.addrs, p.Addr(), r)
		fewer(z.subnets, p.Masked())
	}
	if r.Domain != "" {
		fewer(z.domains, r.Domain)
	}
	for _, g := range r.Gateways {
		less(x.gateways, g, z)
	}
	less(x.containers, r.ContainerID, z)
}

func more[K comparable](m map[K]map[*zone]int, k K, z *zone) {
	if m[k] == nil {
		m[k] = map[*zone]int{}
	}
	m[k][z]++
}

func less[K comparable](m map[K]map[*zone]int, k K, z *zone) {
	if fewer(m[k], z); len(m[k]) == 0 {
		delete(m, k)
	}
}

func fewer[K comparable](m map[K]int, k K) {
	if m[k]--; m[k] <= 0 {
		delete(m, k)
	}
}

func without[K comparable](m map[K][]*names.Record, k K, r *names.Record) {
	// Copied, because an answer in progress may read the old slice.
	kept := make([]*names.Record, 0, len(m[k]))
	for _, other := range m[k] {
		if other != r {
			kept = append(kept, other)
		}
	}
	if m[k] = kept; len(kept) == 0 {
		delete(m, k)
	}
}

// keys returns the keys of all records.
func (x *index) keys() []string {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return slices.Collect(maps.Keys(x.records))
}

// listens returns the addresses to listen on, of one network or of all.
func (x *index) listens(network string) (all []netip.Addr) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for a, zones := range x.gateways {
		if network == "" || zones[x.zones[network]] > 0 {
			all = append(all, a)
		}
	}
	return all
}

// scope is what a client may query.
type scope struct {
	zones    []*zone // the zone of the address that it asks is first
	upstream []netip.Addr
}

// scope returns the scope of a client that asks a gateway's address. The client must be in the network with that
// gateway, or be the host. A known container also gets its other networks. If two networks have the same gateway and
// subnet, the container's address decides between them, unless both have that address. For all other clients, ok is
// false.
func (x *index) scope(gateway, client netip.Addr) (s scope, ok bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	gateway, client = gateway.Unmap().WithZone(""), client.Unmap().WithZone("")
	var exact, near []*zone
	for z := range x.gateways[gateway] {
		switch {
		case len(z.addrs[client]) > 0:
			exact = append(exact, z)
		case client == gateway || z.holds(client):
			near = append(near, z)
		}
	}
	if len(exact) == 0 {
		exact = near
	}
	if len(exact) != 1 {
		return s, false
	}
	s.zones = exact
	for _, r := range exact[0].addrs[client] {
		s.upstream = r.Upstream
		for z := range x.containers[r.ContainerID] {
			if !slices.Contains(s.zones, z) {
				s.zones = append(s.zones, z)
			}
		}
	}
	slices.SortFunc(s.zones[1:], func(a, b *zone) int { return strings.Compare(a.network, b.network) })
	return s, true
}

// network returns the name of the network that a client asks, or "" if it may ask none.
func (x *index) network(gateway, client netip.Addr) string {
	if s, ok := x.scope(gateway, client); ok {
		return s.zones[0].network
	}
	return ""
}

func (z *zone) holds(a netip.Addr) bool {
	for p := range z.subnets {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// lookUp returns the addresses of a name, which is in lower case and without a final dot. mine says that no other
// server knows the name: a container has it, or it is in a domain of the network, or it has only one label. An alias
// that is another container's own name does not count, so that no other container gets its answers.
func (x *index) lookUp(s scope, name string) (addrs []netip.Addr, found, mine bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	label, domain, dotted := strings.Cut(name, ".")
	for _, z := range s.zones {
		if dotted && z.domains[domain] == 0 {
			for d := range z.domains {
				found = found || name == d // it exists, and has no address
				mine = mine || found || strings.HasSuffix(name, "."+d)
			}
			continue
		}
		mine = true
		for _, records := range [][]*names.Record{z.names[label], z.aliases[label]} {
			for _, r := range records {
				if dotted && r.Domain != domain {
					continue
				}
				found = true
				for _, p := range r.Addrs { // there is one: the plugin alias demands it
					addrs = append(addrs, p.Addr())
				}
			}
			if len(addrs) > 0 {
				return addrs, true, true
			}
		}
	}
	return addrs, found, mine
}

// named returns the full names of the containers that have an address.
func (x *index) named(s scope, a netip.Addr) (all []string) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, z := range s.zones {
		for _, r := range z.addrs[a] {
			list := append(slices.Clone(r.Names), r.Aliases...)
			if len(list) == 0 {
				continue
			}
			name := list[0] + "."
			if r.Domain != "" {
				name += r.Domain + "."
			}
			all = append(all, name)
		}
		if all != nil {
			break
		}
	}
	return all
}
