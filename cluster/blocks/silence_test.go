package blocks

// What a world has for pools whose blocks a silent node loses.

// isLate reports whether the deadline in the grant of a machine is over.
func (w *world) isLate(m *machine) bool {
	end, has := m.deadlines["p"]
	return has && w.now >= end
}

func (e *env) fence() Fence {
	if e.fenced {
		return Drop
	}
	return ""
}

// reaching returns the containers of a machine that its kernel does not cut off.
func (w *world) reaching(m *machine) uint16 {
	if !w.fenced || w.wrong == noFenceAtAll || w.wrong == fenceByAgent && m.agent == nil {
		return m.containers
	}
	cut := m.lost & m.leases
	if w.wrong == fenceGoesOnReturn {
		cut = 0
	}
	if w.isLate(m) {
		cut |= w.addresses(m.granted)
	}
	return m.containers &^ cut
}

// cutOff ends the containers of machines whose deadline is over, as the operator promised who has no fence.
func (w *world) cutOff() {
	for i := range w.machines {
		if m := &w.machines[i]; w.isLate(m) && !w.fenced && w.wrong != noDeadline {
			m.containers = 0
		}
	}
}

// tick lets time pass. What a mutation begins after a deadline stays.
func (w *world) tick() {
	w.now++
	for i := range w.machines {
		m := &w.machines[i]
		if m.agent != nil {
			m.agent.Time(w.now)
		}
		if w.isLate(m) && !w.fenced {
			m.containers = 0
		}
	}
}

func (w *world) configure() {
	e := w.store.get(Key{Kind: ConfigKey})
	c := *e.Value.Config
	p := w.pool()
	if c.Pools[0].Reclaim == 0 {
		p.Reclaim = 2
	} else {
		p.Reclaim = 0
	}
	c.Pools = []Pool{p}
	w.store.commit(Configure(e, c))
}

func (w *world) fleet() (f Fleet) {
	f = Fleet{Store: w.store.id, Config: w.store.get(Key{Kind: ConfigKey}), Readopt: w.store.get(Key{Kind: ReadoptKey})}
	for _, e := range w.store.entries {
		if e.Key.Kind == BeatKey {
			f.Beats = append(f.Beats, e)
		}
	}
	return f
}

// hasNews reports whether an agent has not seen yet what the store says of who was heard.
func (w *world) hasNews(m *machine) bool {
	f := w.fleet()
	for _, b := range f.Beats {
		is := m.silences.of[b.Key.Node]
		isSeen := is.beat.Revision == b.Revision && is.config == f.Config.Revision && is.store == f.Store
		if b.Key.Node != nodeName(m.node) && !isSeen && f.Readopt.Revision == 0 {
			return true
		}
	}
	return len(m.silences.of) > 0 && f.Readopt.Revision != 0
}

func (w *world) observe(m *machine) {
	before := m.silences.of
	m.silences.Look(w.now, w.fleet())
	if w.wrong != fromFirstLook {
		return
	}
	for node, is := range m.silences.of {
		if was, known := before[node]; known {
			is.since = was.since
			m.silences.of[node] = is
		}
	}
}

// mayReclaim reports whether the agent of a machine finds that a node is silent for too long.
func (w *world) mayReclaim(m *machine, node int) bool {
	name := nodeName(node)
	left, ok := m.silences.Left(w.now, name, w.store.get(Key{Kind: ConfigKey}).Value.Config.Pools[0])
	return ok && left == 0 && node != m.node && !w.gone(name) && len(w.mine(name)) > 0
}

// blocksOf returns the entries of a node's blocks.
func (w *world) blocksOf(node string) (list []Entry) {
	for _, h := range w.mine(node) {
		list = append(list, w.store.get(Key{Kind: BlockKey, Pool: h.Pool, Block: h.Block}))
	}
	return list
}

// publish replaces the grant of a machine.
func (w *world) publish(m *machine, p Publish) {
	if w.wrong == goOnReclaimed {
		for _, h := range m.granted {
			p.Holdings = holdings(p.Holdings).with(h)
		}
	}
	m.lost = (m.lost | w.addresses(m.granted)) & m.leases &^ w.addresses(p.Holdings)
	m.granted = p.Holdings
	for pool, end := range p.Deadlines {
		if was, has := m.deadlines[pool]; w.wrong == promiseUnkept && (!has || end < was) {
			return
		}
	}
	m.deadlines = p.Deadlines
}
