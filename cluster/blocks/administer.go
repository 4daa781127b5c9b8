package blocks

// Init returns the transaction that makes a cluster in a store.
func Init(c Config) Txn {
	return Txn{
		If:  []Compare{{Key{Kind: ConfigKey}, 0}},
		Put: []Pair{{Key{Kind: ConfigKey}, Value{Config: &c}}},
	}
}

// Forget returns the transaction after which a node never writes again. Its machine has to be off, or its containers
// ended: their addresses go to others. Name is the entry of its name, which becomes free unless another node has it.
func Forget(epoch, name Entry) Txn {
	node, e := epoch.Key.Node, *epoch.Value.Epoch
	e.N++
	e.Gone = true
	t := Txn{
		If:     []Compare{{epoch.Key, epoch.Revision}, {name.Key, name.Revision}},
		Put:    []Pair{{epoch.Key, Value{Epoch: &e}}},
		Delete: []Key{{Kind: NodeKey, Node: node}, {Kind: DrainKey, Node: node}, {Kind: AssertKey, Node: node}, {Kind: BeatKey, Node: node}},
	}
	if name.Value.Node == node {
		t.Delete = append(t.Delete, name.Key)
	}
	return t
}

// Bury returns the transaction that takes a block from a node that was forgotten. The store removes the entry of kind
// GraveKey after some minutes.
func Bury(node string, block Entry) Txn {
	k := block.Key
	owners := make([]string, len(block.Value.Owners))
	for n, owner := range block.Value.Owners {
		if owner != node {
			owners[n] = owner
		}
	}
	t := Txn{
		If:     []Compare{{k, block.Revision}},
		Delete: []Key{mineKey(node, Holding{Pool: k.Pool, Block: k.Block})},
		Put:    []Pair{{graveKey(k.Pool, k.Block), Value{Node: node}}},
	}
	t.setBlock(k, owners)
	return t
}

// Awaited returns the nodes that have not said yet what they have, after a store with this identifier was found
// restored. Entries are all of the kinds EpochKey, ReadoptKey and AssertKey, of one revision of the store.
//
// A node that joined after the copy was made is not among the entries until its agent has run.
func Awaited(entries []Entry, store string) (nodes []string) {
	now := Readoption{Store: store, Revision: Snapshot{Entries: entries}.Of(Key{Kind: ReadoptKey}).Revision}
	asserted := map[string]bool{}
	for _, e := range entries {
		if e.Key.Kind == AssertKey {
			asserted[e.Key.Node] = *e.Value.Readoption == now
		}
	}
	for _, e := range entries {
		if e.Key.Kind == EpochKey && !e.Value.Epoch.Gone && !asserted[e.Key.Node] {
			nodes = append(nodes, e.Key.Node)
		}
	}
	return nodes
}

// Readopted returns the transaction that ends what began when a store was found restored. No node may be awaited but
// those whose containers have ended: see [Awaited].
func Readopted(config, readopt Entry, store string) Txn {
	c := *config.Value.Config
	c.Store = store
	return Txn{
		If:     []Compare{{config.Key, config.Revision}, {readopt.Key, readopt.Revision}},
		Put:    []Pair{{config.Key, Value{Config: &c}}},
		Delete: []Key{readopt.Key},
	}
}

// Configure returns the transaction that replaces the configuration.
func Configure(config Entry, c Config) Txn {
	return Txn{
		If:  []Compare{{config.Key, config.Revision}},
		Put: []Pair{{config.Key, Value{Config: &c}}},
	}
}

// Unused is what has to hold when a pool is removed: no node has a block of it, none rests, and no node may still have to say
// what it has. A claim compares the configuration, so none comes later.
func Unused(pool string) []Compare {
	return []Compare{{Key{Kind: BlockKey, Pool: pool}, 0}, {Key{Kind: GraveKey, Pool: pool}, 0}, {Key{Kind: ReadoptKey}, 0}}
}

// Drain returns the transaction after which a node claims nothing, or does again.
func Drain(node string, drain bool) Txn {
	k := Key{Kind: DrainKey, Node: node}
	if drain {
		return Txn{Put: []Pair{{k, Value{Node: node}}}}
	}
	return Txn{Delete: []Key{k}}
}
