package main

// faults are bugs of the kinds that reviewers look for: a lock left out, an order turned round, an error ignored, a
// record written too late, a question not asked again.
func faults() []fault {
	const (
		policy    = "resource/filter/policy/reference.go"
		ingress   = "resource/filter/policy/ingress.go"
		transient = "resource/network/transientbridge.go"
		verbs     = "sdk/verbs.go"
		leases    = "internal/ipam/disk/"
		lock      = "attach/lock.go"
	)
	return []fault{
		{"the policy of a bridge goes with any attachment", "a question not asked", []edit{
			{policy, "	if is, err := stays(); is || err != nil {\n		return err\n	}\n	o :=", "	_ = stays\n	o :="},
			{policy, "		if is, err = stays(); is || err != nil {\n			return err\n		}\n", ""}}},
		{"who needs a policy is asked once, before the transaction", "a question not asked again", []edit{
			{policy, "		if is, err = stays(); is || err != nil {\n			return err\n		}\n", ""}}},
		{"an ADD is not told that the policy is leaving", "a record left out", []edit{
			{policy, "return setLeaving(f, o, true) })", "return nil })"}}},
		{"the record of who needs a policy is written behind the policy", "a record written too late", []edit{
			{ingress, "		if news, err = remember(w, policyRecord, i.Owner, on.link); err != nil {\n			return false, err\n		}\n", ""},
			{ingress, "	if err == nil {\n		forgetForged(w, fresh)\n	}\n", "	if err == nil {\n		forgetForged(w, fresh)\n	}\n" +
				"	if err == nil && on.kind == filter.KindNetwork {\n		news, err = remember(w, policyRecord, i.Owner, on.link)\n	}\n"}}},
		{"an empty bridge goes without its lock", "a lock left out", []edit{
			{transient, "unlock, err := record.Lock(ctx, link.BridgeLock(t.Name))", "unlock, err := func() {}, ctx.Err()"}}},
		{"whether a bridge is empty is asked before its lock", "an order turned round", []edit{
			{transient, "	if _, removable, err := t.empty(w, owner); err != nil || !removable {\n		return err\n	}\n",
				"	links, removable, err := t.empty(w, owner)\n	if err != nil || !removable {\n		return err\n	}\n"},
			{transient, "	links, removable, err := t.empty(w, owner)\n	if err != nil || !removable {\n		return err\n	}\n	var errs",
				"	var errs"}}},
		{"a bridge that went since it was ensured is not made again", "a case left out", []edit{
			{"resource/link/port.go", "ok && (errors.Is(err, rtnl.ErrNoLink)",
				"ok && ctx == nil && (errors.Is(err, rtnl.ErrNoLink)"}}},
		{"a bridge that another call makes is an error", "an error not expected", []edit{
			{"resource/link/bridge.go", "case !errors.Is(err, fs.ErrExist):", "case !errors.Is(err, fs.ErrInvalid):"}}},
		{"a gateway's address that another call adds is an error", "an error not expected", []edit{
			{"resource/addr/gateway.go", "	if errors.Is(err, fs.ErrExist) {\n		return nil\n	}\n	return err\n}",
				"	if errors.Is(err, fs.ErrPermission) {\n		return nil\n	}\n	return err\n}"}}},
		{"DEL releases addresses before it removes links", "an order turned round", []edit{
			{verbs, "if c.ipam != nil && c.ipam.needsLink() {", "if c.ipam != nil {"},
			{verbs, "left == nil && c.ipam != nil && !c.ipam.needsLink()", "left == nil && c.ipam == nil"}}},
		{"GC takes the leases of the living", "a question not asked", []edit{
			{leases + "disk.go", "return keep[e.owner] })", "return keep[\"\"] })"}}},
		{"a repair leaves the rules of attachments that were deleted meanwhile", "a question not asked", []edit{
			{"internal/repair/fixing.go", "	if a.r.DryRun || !a.made ||", "	if a.r.DryRun || a.made ||"}}},
		{"a container has no lock", "a lock left out", []edit{
			{lock, "f, err := r.lock(ctx, \"container-\", id, syscall.LOCK_EX)",
				"f, err := r.lock(ctx, \"container-\", id, syscall.LOCK_SH)"}}},
		{"a lock's file may be removed", "a question not asked", []edit{
			{lock, "	still, err := named(f)\n		if still &&", "	still, err := true, error(nil)\n		if still &&"}}},
		{"nft transactions go by old answers", "a lock and a check left out", []edit{
			{"resource/filter/transaction.go", "f.CommitAt(b, was)", "f.CommitAt(b, 0)"},
			{"kernel/world.go", "	held, err := record.Queue(soon, bound, name, false)\n",
				"	if ctx != nil {\n		return func() {}, nil\n	}\n	held, err := record.Queue(soon, bound, name, false)\n"}}},
		{"a container's lock needs room on the disk", "an error not expected", []edit{
			{lock, "	if !errors.Is(err, syscall.ENOSPC) && !errors", "	if !errors"}}},
		{"DEL needs room on the disk for the record of its policy", "an error not expected", []edit{
			{policy, "if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {\n			err = w",
				"if errors.Is(err, unix.EDQUOT) {\n			err = w"}}},
		{"a DEL asks no DHCP daemon that started meanwhile", "a question not asked again", []edit{
			{"plugin/dhcp/dhcp.go", "	if err := l.end(ctx); !absent(err) {", "	if err := ctx.Err(); err != nil {"}}},
		{"a DEL without a DHCP daemon leaves no note", "a record left out", []edit{
			{"internal/dhcp/notes.go", "	f, err := os.OpenFile(note(dir, o), os.O_CREATE|os.O_EXCL, 0o600)", "	f, err := os.Open(dir)"}}},
		{"the DHCP daemon handles no notes", "a question not asked", []edit{
			{"internal/dhcp/daemon/daemon.go", "		d.resume(r, time.Now().Add(time.Duration(i)*3*time.Millisecond))\n	}\n	d.takeNotes(owners)",
				"		d.resume(r, time.Now().Add(time.Duration(i)*3*time.Millisecond))\n	}"}}},
		{"the DHCP daemon forgets the leases of the one before", "a question not asked", []edit{
			{"internal/dhcp/daemon/daemon.go", "	records, err := d.store.load()", "	var records []leaseFile"}}},
		{"a block leaves the grant after the lock of the leases", "an order turned round", []edit{
			{leases + "ledger.go", "		return change()\n	})\n	return busy, err",
				"		return nil\n	})\n	if err == nil && !busy {\n		err = change()\n	}\n	return busy, err"}}},
		{"an ADD reads the grant before it has the lock of the leases", "an order turned round", []edit{
			{leases + "allocate.go", "	if err := s.refreshSets(); err != nil {\n		return nil, err\n	}\n	want, err", "	want, err"}}},
		{"a block leaves the grant that has a lease", "a question not asked", []edit{
			{leases + "ledger.go", "		if busy {\n			return nil\n		}\n		return change()", "		return change()"}}},
		{"leases of an earlier boot are alive", "a question answered wrongly", []edit{
			{leases + "ledger.go", "return ipam.Gone, \"of an earlier boot\"", "return ipam.Alive, \"\""}}},
		{"a failed ADD is not rolled back", "a step left out", []edit{
			{"attach/attach.go", "	if undo := op.rollback(ctx); undo != nil {", "	if undo := ctx.Err(); undo != nil {"}}},
		{"the cache is written in place", "an order turned round", []edit{
			{"attach/cache.go", "	tmp := r.temporary(o)\n	err := os.Remove(tmp)", "	tmp := path\n	err := os.Remove(tmp)"}}},
		{"a port is made without the lock of its bridge", "a lock left out", []edit{
			{"resource/link/port.go", "unlock, err := record.Share(ctx, BridgeLock(name))",
				"unlock, err := func() {}, errors.Join(ctx.Err())\n	_ = record.Share"}}},
		{"of a container's addresses, only the first is released", "a case left out", []edit{
			{leases + "disk.go", "d.giveBack(found, uint32(d.now)))", "d.giveBack(found[:min(1, len(found))], uint32(d.now)))"}}},
	}
}
