package blocks

import (
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A happening is how often kinds of steps happen.
type happening map[kind]int8

// worldOf is one with two nodes, in which each kind of step happens so often.
func worldOf(e env, h happening) *env {
	e.nodes = max(e.nodes, 2)
	e.blocks, e.parts = max(e.blocks, 1), max(e.parts, 1)
	for k, n := range h {
		e.most[k] = n
		if k >= fault {
			e.maxFaults += n
		}
	}
	return &e
}

// small are the worlds that are explored, by what happens in them.
func small() map[string]*env {
	started, owned := env{started: true}, env{started: true, owned: 1}
	parts, two := env{started: true, owned: 1, parts: 2}, env{started: true, blocks: 2}
	timed, timedParts := env{started: true, owned: 1, timed: 2, hungry: true}, env{started: true, owned: 1, parts: 2, timed: 2, hungry: true}
	later := env{started: true, owned: 1, hungry: true}
	both := env{started: true, owned: 1, blocks: 2, both: true}
	fenced, fencedLater := timed, later
	fenced.fenced, fencedLater.fenced = true, true
	stored := happening{want1: 2, want0: 1, add: 2, off: 1, copyStore: 1, restoreStore: 1}
	return map[string]*env{
		"start":                    worldOf(env{}, happening{want1: 2, add: 2, lose: 1, kill: 1}),
		"claim":                    worldOf(started, happening{want1: 2, want0: 1, add: 2, lose: 2, kill: 1}),
		"release":                  worldOf(owned, happening{want1: 2, want0: 1, add: 2, del: 1, lose: 1, kill: 1}),
		"two blocks":               worldOf(two, happening{want1: 2, want2: 1, add: 3, lose: 1}),
		"leases":                   worldOf(parts, happening{add: 3, del: 1, die: 1, kill: 1}),
		"forget":                   worldOf(owned, happening{want1: 1, add: 2, lose: 1, off: 1, forget: 1}),
		"forget, claim on a way":   worldOf(started, happening{want1: 2, add: 1, lose: 1, off: 1, forget: 1}),
		"clone":                    worldOf(owned, happening{want1: 1, add: 3, clone: 1, kill: 1}),
		"restored disk":            worldOf(owned, happening{want1: 1, add: 2, copyDisk: 1, off: 1, restoreDisk: 1}),
		"restored store":           worldOf(started, stored),
		"restored store, released": worldOf(owned, stored),
		"restored store with the same identifier": worldOf(env{started: true, watched: true, wrong: sameStoreRestored},
			happening{want1: 2, add: 2, copyStore: 1, restoreStore: 1}),
		"pinned": worldOf(env{started: true, blocks: 2, pinned: true},
			happening{want1: 2, want2: 1, want0: 1, add: 3, del: 1, lose: 1}),
		"pinned, forget": worldOf(env{started: true, owned: 1, pinned: true},
			happening{want1: 1, add: 2, lose: 1, off: 1, forget: 1}),
		"pinned, restored store": worldOf(env{started: true, pinned: true}, stored),
		"cede":                   worldOf(parts, happening{want1: 1, want0: 1, add: 3, cede: 1, lose: 1}),
		"cede, give back":        worldOf(parts, happening{want1: 1, want0: 2, add: 2, del: 1, cede: 1, kill: 1}),
		"cede, reboot":           worldOf(parts, happening{want1: 1, want0: 1, add: 2, cede: 1, off: 1}),
		"cede, restored":         worldOf(parts, happening{want1: 1, want0: 1, add: 2, cede: 1, copyStore: 1, restoreStore: 1}),
		"reclaim":                worldOf(timed, happening{tick: 4, observe: 3, reclaim: 1, add: 3}),
		"reclaim, lost answers":  worldOf(timed, happening{tick: 3, observe: 2, reclaim: 1, add: 2, lose: 1}),
		"reclaim, agent killed":  worldOf(timed, happening{tick: 4, observe: 2, reclaim: 1, add: 2, kill: 1}),
		"reclaim, reboot":        worldOf(timed, happening{tick: 3, observe: 2, reclaim: 1, add: 2, off: 1}),
		"reclaim, restored":      worldOf(timed, happening{tick: 3, observe: 2, reclaim: 1, add: 3, copyStore: 1, restoreStore: 1}),
		"reclaim, cede":          worldOf(timedParts, happening{tick: 3, observe: 2, reclaim: 1, add: 2, cede: 1}),
		"reclaim, configured":    worldOf(later, happening{tick: 4, observe: 2, reclaim: 1, add: 2, configure: 2}),
		"fence":                  worldOf(fenced, happening{tick: 4, observe: 3, reclaim: 1, add: 3, del: 1}),
		"fence, lost answers":    worldOf(fenced, happening{tick: 3, observe: 2, reclaim: 1, add: 2, lose: 1}),
		"fence, agent killed":    worldOf(fenced, happening{tick: 4, observe: 2, reclaim: 1, add: 2, kill: 1}),
		"fence, restored":        worldOf(fenced, happening{tick: 3, observe: 2, reclaim: 1, add: 3, copyStore: 1, restoreStore: 1}),
		"fence, configured":      worldOf(fencedLater, happening{tick: 4, observe: 2, reclaim: 1, add: 2, configure: 2}),
		"both families":          worldOf(both, happening{want2: 2, add: 2, cede: 1, lose: 1}),
		"both families, killed":  worldOf(both, happening{want2: 1, want0: 1, add: 2, cede: 1, kill: 1}),
		"cede, forget":           worldOf(parts, happening{want1: 1, add: 1, cede: 1, off: 1, forget: 1}),
	}
}

// TestExplore goes through the states of small worlds in the order of their distance: no address is held twice in
// them, and from them everything comes back. FAIRLEAD_STATES is how many of each world; 0: all.
func TestExplore(t *testing.T) {
	most := number(t, "FAIRLEAD_STATES", 10_000)
	for name, e := range small() {
		t.Run(name, func(t *testing.T) {
			r := explore(e, most, 16)
			t.Logf("%d states, %d steps deep; everything comes back from %d of them", r.states, r.depth, r.drained)
			if r.broken != "" {
				show(t, e, r)
			}
		})
	}
}

// TestWalks goes ways by chance through a larger world, in which much happens. A seed is a way. FAIRLEAD_WALKS is how
// many.
func TestWalks(t *testing.T) {
	all := happening{add: 40, del: 40, want0: 12, want1: 12, want2: 12, cede: 8, lose: 6, kill: 6, off: 4, die: 4}
	admin := maps.Clone(all)
	maps.Copy(admin, happening{forget: 2, clone: 1, copyDisk: 2, restoreDisk: 1})
	restore := maps.Clone(all)
	maps.Copy(restore, happening{copyStore: 1, restoreStore: 1})
	silent := maps.Clone(all)
	maps.Copy(silent, happening{tick: 20, observe: 40, reclaim: 6, copyStore: 1, restoreStore: 1})
	for name, h := range map[string]happening{"administrator": admin, "restored store": restore, "silent nodes": silent,
		"silent nodes with a fence": silent} {
		t.Run(name, func(t *testing.T) {
			isFenced := strings.HasSuffix(name, "fence")
			e := worldOf(env{nodes: 3, blocks: 2, parts: 2, timed: Delay(2 * min(h[tick], 1)), fenced: isFenced}, h)
			for seed := range number(t, "FAIRLEAD_WALKS", 300) {
				if r := walk(e, uint64(seed), 400); r.broken != "" {
					show(t, e, r)
					t.Fatalf("seed %d", seed)
				}
			}
		})
	}
}

// number is that in an environment variable.
func number(t *testing.T, name string, otherwise int) int {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if n == 0 {
		n = 1 << 40
	}
	return n
}

// TestMutations makes each mistake, and finds what comes of it. So the exploration would find it in the owner.
func TestMutations(t *testing.T) {
	started, owned := env{started: true}, env{started: true, owned: 1}
	parts := env{started: true, owned: 1, parts: 2}
	timed, later := env{started: true, owned: 1, timed: 2, hungry: true}, env{started: true, owned: 1, hungry: true}
	fenced := timed
	fenced.fenced = true
	silent := happening{tick: 2, observe: 1, reclaim: 1, add: 2}
	late := happening{want0: 1, want1: 2, add: 2, kill: 1}
	tests := map[string]struct {
		wrong mutation
		world *env
		finds string
	}{
		"no comparison with the epoch": {noEpochCompare, worldOf(owned, late), "both have"},
		"no comparison with the epoch, forgotten": {noEpochCompare,
			worldOf(started, happening{want1: 1, lose: 1, off: 1, forget: 1}), "lost for good"},
		"published before the claim was read back": {publishBeforeReadBack,
			worldOf(started, happening{want1: 2, add: 2, lose: 1}), "both have"},
		"released before it is taken out of use": {releaseBeforeWithdraw,
			worldOf(owned, happening{want0: 1, want1: 1, add: 2}), "both have"},
		"put again when a node returns": {putAgain,
			worldOf(owned, happening{want1: 1, add: 2, off: 1, forget: 1}), "both have"},
		"a lease on the block": {leaseOnBlock, worldOf(owned, happening{want1: 1, add: 2, kill: 1}), "both have"},
		"GC by name":           {gcByName, worldOf(parts, happening{add: 2}), "two containers of one machine"},
		"no epoch after an unknown outcome": {noFenceAfterUnknown,
			worldOf(owned, happening{want0: 1, want1: 2, add: 2, lose: 1}), "both have"},
		"a release without the epoch": {releaseWithoutEpoch, worldOf(owned, late), "both have"},
		"a part ceded without the other's epoch": {cedeWithoutEpoch,
			worldOf(parts, happening{cede: 1, off: 1, forget: 1}), "lost for good"},
		"the nonce is saved after the epoch": {nonceAfterEpoch, worldOf(env{}, happening{kill: 1}), "is refused"},
		"a clone that cannot be told from its source": {sameMachineClone,
			worldOf(owned, happening{add: 2, clone: 1}), "both have"},
		"a readoption that ends before all have asserted": {endReadoptUnasked,
			worldOf(started, happening{want1: 2, add: 2, copyStore: 1, restoreStore: 1}), "both have"},
		"a restored store with the same identifier": {sameStoreRestored,
			worldOf(started, happening{want1: 2, add: 2, copyStore: 1, restoreStore: 1}), "both have"},
		"silence is counted from the first look": {fromFirstLook,
			worldOf(timed, happening{tick: 2, observe: 2, reclaim: 1, add: 2}), "both have"},
		"a beat counts from its answer": {fromReply,
			worldOf(timed, happening{tick: 3, observe: 2, reclaim: 1, add: 2}), "both have"},
		"no deadline for the plugin":             {noDeadline, worldOf(timed, silent), "both have"},
		"a node goes on with what was reclaimed": {goOnReclaimed, worldOf(timed, silent), "both have"},
		"no fence, and nobody ends containers":   {noFenceAtAll, worldOf(fenced, silent), "both have"},
		"a fence that needs the agent": {fenceByAgent,
			worldOf(fenced, happening{tick: 2, observe: 1, reclaim: 1, add: 2, kill: 1}), "both have"},
		"a fence that goes when the node returns": {fenceGoesOnReturn, worldOf(fenced, silent), "both have"},
		"no comparison with the beat":             {noBeatCompare, worldOf(timed, silent), "both have"},
		"a promise before the grant keeps it": {promiseUnkept,
			worldOf(later, happening{tick: 2, observe: 1, reclaim: 1, add: 2, configure: 1}), "both have"},
	}
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		tc := tests[name]
		t.Run(name, func(t *testing.T) {
			tc.world.wrong = tc.wrong
			drainEvery := 0
			if strings.Contains(tc.finds, "lost") || strings.Contains(tc.finds, "refused") {
				drainEvery = 1
			}
			r := explore(tc.world, 200_000, drainEvery)
			if !strings.Contains(r.broken, tc.finds) {
				t.Fatalf("%d states, %d steps deep: %q, want %q", r.states, r.depth, r.broken, tc.finds)
			}
			t.Logf("found after %d states:\n%s", r.states, r.lines(tc.world))
		})
	}
}
