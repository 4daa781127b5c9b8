package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// A memberFault is what happens to a rig. It ends with etcd whole again.
type memberFault struct {
	name string
	do   func(*rig)
}

// during is how many calls each node makes while a fault lasts.
const during = 8

var memberFaults = []memberFault{
	{"the leader is killed", func(r *rig) {
		m := r.leader()
		m.process.kill()
		r.works(during)
		m.restart()
	}},
	{"the leader is stopped for a while", func(r *rig) {
		m := r.leader()
		m.signal(syscall.SIGSTOP)
		r.works(during)
		r.answers() // of the other members
		m.signal(syscall.SIGCONT)
	}},
	{"a member is stopped for a while", func(r *rig) {
		leader := r.leader()
		for _, m := range r.etcd {
			if m != leader {
				m.signal(syscall.SIGSTOP)
				r.works(during)
				m.signal(syscall.SIGCONT)
				return
			}
		}
	}},
	{"two members are away", func(r *rig) {
		r.etcd[0].process.kill()
		r.etcd[1].process.kill()
		r.works(during)
		r.etcd[0].restart()
		r.etcd[1].restart()
	}},
	{"the leader is cut off from the other members", func(r *rig) {
		m := r.leader()
		r.cut(fmt.Sprintf("ip saddr %[1]s ip daddr %[2]s drop; ip saddr %[2]s ip daddr %[1]s drop", m.address, r.addresses(m)), func() {
			r.works(during)
		})
	}},
	{"the leader hears nothing of the other members", func(r *rig) {
		m := r.leader()
		r.cut(fmt.Sprintf("ip saddr %s ip daddr %s drop", r.addresses(m), m.address), func() { r.works(during) })
	}},
	{"a node is cut off from etcd", func(r *rig) {
		w := r.one()
		r.cut(fmt.Sprintf("ip saddr %[1]s ip daddr %[2]s drop; ip saddr %[2]s ip daddr %[1]s drop", w.address, r.addresses(nil)),
			func() { r.works(during) })
	}},
	{"a node sends to etcd and hears nothing", func(r *rig) {
		w := r.one()
		r.cut(fmt.Sprintf("ip saddr %s ip daddr %s drop", r.addresses(nil), w.address), func() { r.works(during) })
	}},
	{"an agent is killed", func(r *rig) {
		w := r.one()
		w.agent.kill()
		r.works(during)
		w.startFleetAgent()
	}},
	{"an agent is stopped for a while", func(r *rig) {
		w := r.one()
		_ = w.agent.cmd.Process.Signal(syscall.SIGSTOP)
		r.works(during)
		_ = w.agent.cmd.Process.Signal(syscall.SIGCONT)
	}},
	{"/run is lost", func(r *rig) {
		w := r.one()
		w.mu.Lock()
		w.agent.kill()
		w.run("rm -rf /run/fairlead/*")
		w.mu.Unlock()
		r.works(during) // which fail there
		w.startFleetAgent()
	}},
	{"a grant is lost beside its agent", func(r *rig) {
		w := r.one()
		w.run("rm /run/fairlead/cluster/pods.json")
		r.works(during) // which fail there at first
	}},
	{"a machine gets another disk", func(r *rig) {
		w := r.one()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.agent.end()
		w.clear(true)
		w.run("rm -rf /run/fairlead/* /var/lib/cni/*")
		w.startFleetAgent()
		w.until("cat /run/fairlead/cluster/pods.json", "has this node's name", true)
		if said, _ := w.try("ip -br address show fairlead-vx"); strings.Contains(said, "/32") {
			r.t.Errorf("a node has the addresses of another one of its name: %s", said)
		}
		w.agent.end()
		w.until("fairlead cluster forget --confirmed-dead "+w.name, "is forgotten", true)
		w.startFleetAgent()
	}},
	{"a machine is cloned", func(r *rig) {
		w := r.one()
		clone := r.newNode(50)
		clone.run("ip route add default via 192.0.2.254; mkdir -p /sys/class/dmi/id; echo clone >/sys/class/dmi/id/product_uuid")
		for _, dir := range []string{"/etc/fairlead", "/var/lib/cni"} {
			clone.take(w.node, dir)
		}
		clone.name = w.name
		clone.startAgent()
		other := &worker{node: clone, rig: r, plugin: w.plugin}
		other.until("cat /run/fairlead/cluster/pods.json", "of another machine: the disk was copied or moved", true)
		r.works(during)
		clone.agent.kill()
		nstest.Run(r.t, "ip", "link", "del", "port50") // for the next clone
	}},
	{"etcd is restored from a copy", (*rig).restore},
	{"a fifth of all packets is lost", func(r *rig) {
		r.cut("numgen random mod 100 < 20 drop", func() { r.works(during) })
	}},
	{"a node's disk is full", func(r *rig) {
		w := r.one()
		w.mu.Lock() // a DEL would make room
		w.fill("/var/lib/cni")
		w.agent.kill()
		w.startFleetAgent()
		w.says("fairlead cluster status", "no space left on device")
		w.mu.Unlock()
		r.works(during) // ADDs fail there
		w.empty("/var/lib/cni")
	}},
	{"a node's /run is full", func(r *rig) {
		const unwritten = "write /run/fairlead/cluster/pods.json.new: no space left on device"
		w := r.one()
		w.mu.Lock()
		w.fill("/run/fairlead")
		w.refused(unwritten, "the agent tries again by itself")
		w.says("fairlead cluster status", unwritten)
		w.agent.kill()
		w.run("rm /run/fairlead/cluster/*.lock") // as after a boot
		w.fill("/run/fairlead")
		w.startFleetAgent()
		w.says("fairlead cluster status", unwritten)
		w.refused(unwritten)
		w.mu.Unlock()
		r.works(during)
		w.empty("/run/fairlead")
	}},
	{"a member's disk is full", func(r *rig) {
		m := r.leader()
		m.fill("/var/lib/fairlead")
		r.outgrow(m)
		r.works(during)
		m.empty("/var/lib/fairlead")
		m.restart()
	}},
	{"a node's clock jumps by an hour", func(r *rig) {
		w := r.one()
		w.agent.kill()
		w.startAgent("unshare", "-T", "--monotonic", "3600", "--boottime", "3600", "--fork", "--kill-child")
		r.works(during)
		w.agent.kill()
		w.startFleetAgent()
	}},
}

// fill leaves no room on one of the node's file systems, and empty ends that.
func (n *node) fill(dir string) {
	n.c.t.Helper()
	for {
		said, failed := n.try("mount -o remount,size=$(df --output=used " + dir + " | tail -1 | tr -d ' ')k " + dir)
		if !failed {
			return
		}
		if n.c.t.Context().Err() != nil { // it fails while files grow
			n.c.t.Fatal(said)
		}
	}
}

func (n *node) empty(dir string) { n.run("mount -o remount,size=50%% %s", dir) }

// outgrow writes until a member has ended, because it has no room.
func (r *rig) outgrow(m *etcdMember) {
	r.t.Helper()
	large := strings.Repeat("x", 100<<10)
	for r.t.Context().Err() == nil {
		select {
		case _, runs := <-m.process.said:
			if !runs {
				return
			}
		default:
			ctx, stop := context.WithTimeout(r.t.Context(), time.Second)
			_, _ = r.client.Put(ctx, "/test", large) // the other members take it
			stop()
		}
	}
	r.t.Fatal("etcd goes on without room")
}

// says waits until a command says a text, whether it fails or not.
func (n *node) says(line, text string) {
	n.c.t.Helper()
	for {
		said, _ := n.try(line)
		if strings.Contains(said, text) {
			return
		}
		if n.c.t.Context().Err() != nil {
			n.c.t.Fatalf("%s: %q, want %q", line, said, text)
		}
	}
}

// restore replaces etcd by one that has what the former one had before a node claimed a block. It has an identifier that none
// before it had, as what `etcdctl snapshot restore --initial-cluster-token` makes.
func (r *rig) restore() {
	w := r.one()
	w.mu.Lock()
	w.clear(false)
	w.until("fairlead cluster drain "+w.name, "", true)
	w.until("fairlead cluster blocks -o json "+w.name, `"owners"`, false)
	copied, err := r.client.Get(r.t.Context(), "/fairlead/fleet/", clientv3.WithPrefix())
	if err != nil {
		r.t.Fatal(err)
	}
	w.until("fairlead cluster drain --undo "+w.name, "", true)
	w.mu.Unlock()
	for addresses := 0; addresses == 0; { // the copy does not know them
		r.works(1)
		w.mu.Lock()
		addresses = len(w.holds)
		w.mu.Unlock()
	}

	r.restores++
	r.cut("ip daddr "+r.addresses(nil)+" tcp dport 2379 drop", func() {
		r.each(func(m *etcdMember) {
			m.process.kill()
			m.run(`rm -r /var/lib/fairlead/store; sed -Ei 's/("initial-cluster-token":"[^"]*",)?"initial-cluster-state"/'`+
				`'"initial-cluster-token":"%d","initial-cluster-state"/' /etc/fairlead/etcd.json`, r.restores)
		})
		r.each((*etcdMember).start)
		r.answers()
		var puts []clientv3.Op
		for _, kv := range copied.Kvs {
			if kv.Lease == 0 {
				puts = append(puts, clientv3.OpPut(string(kv.Key), string(kv.Value)))
			}
		}
		if _, err := r.client.Txn(r.t.Context()).Then(puts...).Commit(); err != nil {
			r.t.Fatal(err)
		}
	})
	r.works(during)
	r.nodes[0].until("fairlead cluster readopt --done", "nodes claim addresses again", true)
}

// one returns a node, as the random numbers say.
func (r *rig) one() *worker { return r.nodes[r.random.IntN(len(r.nodes))] }

// each does something with the members, all at once.
func (r *rig) each(do func(*etcdMember)) {
	var all sync.WaitGroup
	for _, m := range r.etcd {
		all.Go(func() { do(m) })
	}
	all.Wait()
}

// addresses are those of the members but one, as nft(8) has a set.
func (r *rig) addresses(but *etcdMember) string {
	var list []string
	for _, m := range r.etcd {
		if m != but {
			list = append(list, m.address)
		}
	}
	return "{ " + strings.Join(list, ", ") + " }"
}

// cut has the switch drop packets while a function runs.
func (r *rig) cut(rules string, meanwhile func()) {
	r.t.Helper()
	nstest.Run(r.t, "nft", "table bridge cut { chain forward { type filter hook forward priority 0; "+rules+"; }; }")
	meanwhile()
	nstest.Run(r.t, "nft", "delete table bridge cut")
}

// take copies a directory of another node.
func (n *node) take(from *node, dir string) {
	n.c.t.Helper()
	nstest.Run(n.c.t, "sh", "-ec", fmt.Sprintf("tar -C /proc/%d/root%s -c . | tar -C /proc/%d/root%s -x",
		from.holder.Process.Pid, dir, n.holder.Process.Pid, dir))
}

// fleetTime is how long the faults go on, with both etcds. Without it, each etcd has half of them, once.
func fleetTime(t *testing.T) time.Duration {
	t.Helper()
	text, set := os.LookupEnv("FAIRLEAD_FLEET")
	if !set {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("FAIRLEAD_FLEET=%s: want a duration, such as 2h", text)
	}
	return d / 2
}

// Whatever happens to the three members of an etcd, to nodes and between them, no two containers have one address at one
// time, and all is in service again afterwards. In the end no block is lost.
func TestMembers(t *testing.T) {
	nstest.NeedProgram(t, "etcd", "nft")
	for i, etcd := range []string{"etcd", storeProgram(t)} {
		nstest.Apart(t, filepath.Base(etcd), func(t *testing.T) {
			r := newRig(t, etcd, uint64(i+1))
			order := r.random.Perm(len(memberFaults))
			begun, limit := time.Now(), fleetTime(t)
			for n := 0; ; n++ {
				number := order[n%len(order)]
				switch {
				case limit == 0 && n == len(order), limit > 0 && time.Since(begun) > limit:
					r.end()
					return
				case limit == 0 && number%2 != i:
					continue
				}
				r.suffer(memberFaults[number])
				if t.Failed() {
					return
				}
			}
		})
	}
}

// suffer lets a fault happen while all nodes work, and waits until all is in service again.
func (r *rig) suffer(f memberFault) {
	ctx, stop := context.WithCancel(r.t.Context())
	var working sync.WaitGroup
	for _, w := range r.nodes {
		working.Go(func() { w.begin(ctx) })
	}
	begun := time.Now()
	f.do(r)
	lasted := time.Since(begun)
	r.answers()
	for _, w := range r.nodes {
		r.moves(w)
	}
	r.works(during)
	stop()
	working.Wait()
	r.history.check(r.t, f.name)
	r.t.Logf("%s: %v, and %v until all nodes got blocks", f.name, lasted.Round(time.Millisecond),
		(time.Since(begun) - lasted).Round(time.Millisecond))
}

// end detaches all containers, and drains all nodes: they give back each block.
func (r *rig) end() {
	calls, failed := 0, 0
	for _, w := range r.nodes {
		w.clear(false)
		w.until("fairlead cluster drain "+w.name, "", true)
		w.until("fairlead cluster blocks -o json "+w.name, `"owners"`, false)
		calls, failed = calls+w.calls, failed+w.failed
	}
	r.t.Logf("%d calls, of which %d got no address, and %d holds", calls, failed, len(r.history.holds))
	if len(r.history.holds) == 0 {
		r.t.Error("no container had an address")
	}
}
