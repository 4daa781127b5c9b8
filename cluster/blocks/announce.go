package blocks

// An Announcement is what a node says of itself: how others reach it, and that its agent runs.
type Announcement struct {
	Host  Host
	Lease int64 // of the store, with which it ends that the agent runs
}

// Announce has the next epoch begin with an announcement, in one transaction. Nil: with none.
func (o *Owner) Announce(a *Announcement) { o.says = a }

// announce adds an announcement to a transaction.
func (o *Owner) announce(t *Txn, a Announcement) {
	t.Put = append(t.Put, Pair{Key{Kind: NodeKey, Node: o.journal.Node}, Value{Host: &a.Host}},
		Pair{Key: Key{Kind: AliveKey, Node: o.journal.Node}})
	t.Lease = a.Lease
}

// Announcing returns the transaction that says an announcement now. Ok is false while the node may write nothing.
func (o *Owner) Announcing(a Announcement) (t Txn, ok bool) {
	epoch, ok := o.Standing()
	if !ok {
		return t, false
	}
	t.If = []Compare{epoch}
	o.announce(&t, a)
	return t, true
}
