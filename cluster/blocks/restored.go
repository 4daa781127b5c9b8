package blocks

// SawRevision takes a revision that the store had before it gets what Next says.
func (o *Owner) SawRevision(revision int64) { o.heard = max(o.heard, revision) }

// isBehind takes the revision of an answer of the store, and reports whether it is below one that it has to have. Then the
// store was restored from a copy, though it may have the identifier that it had.
func (o *Owner) isBehind(revision, least int64) bool {
	if revision >= least {
		o.SawRevision(revision)
		return false
	}
	o.heard, o.isOlder = revision, true
	return true
}

// restored reports whether the store is older than what this node or an administrator knows. Containers can have
// addresses then which the store does not know.
func (o *Owner) restored() bool {
	return o.isOlder || o.view.config.Value.Config.Store != o.view.store || o.granted.minus(o.view.mine).Parts != 0
}
