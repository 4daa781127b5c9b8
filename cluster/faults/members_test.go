package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// A rig is three members of an etcd and three nodes of a fleet, whose containers come and go all the time.
type rig struct {
	*cluster
	random  *rand.Rand
	history *history
	etcd    []*etcdMember
	nodes   []*worker
	client  *clientv3.Client

	restores int // of etcd from a copy
}

// An etcdMember is one of three, on a machine of its own.
type etcdMember struct {
	*node
	program string
	process *process
}

// A worker attaches containers to a node and detaches them, one after the other, as the random numbers say.
type worker struct {
	*node
	rig     *rig
	random  *rand.Rand
	plugin  string
	mu      sync.Mutex // held during a call, and by who needs that none is made
	holds   map[string]*hold
	calls   int
	failed  int           // ADDs
	said    string        // by the plugin, when the last of them failed
	counted chan struct{} // a call has ended
	undone  []string      // containers whose DEL a stopped agent held up
}

// members is how many an etcd has in these tests.
const members = 3

// newRig makes a fleet in an etcd that a program runs: etcd itself, or fairlead-store.
func newRig(t *testing.T, program string, seed uint64) *rig {
	r := &rig{cluster: newFleetSwitch(t), random: rand.New(rand.NewPCG(seed, 0)), history: newHistory()}
	r.own += " /sys/class" // has the identifier of the hardware
	var initial, urls []string
	for i := range members {
		m := &etcdMember{node: r.newNode(100 + i), program: program}
		r.etcd = append(r.etcd, m)
		initial = append(initial, fmt.Sprintf("%s=http://%s:2380", m.name, m.address))
		urls = append(urls, "http://"+m.address+":2379")
	}
	for i, m := range r.etcd {
		config, err := json.Marshal(map[string]any{"name": m.name, "data-dir": "/var/lib/fairlead/store",
			"listen-client-urls": urls[i], "advertise-client-urls": urls[i],
			"listen-peer-urls": "http://" + m.address + ":2380", "initial-advertise-peer-urls": "http://" + m.address + ":2380",
			"initial-cluster": strings.Join(initial, ","), "initial-cluster-state": "new",
			"logger": "zap", "log-level": "error", "log-outputs": []string{"stderr"}})
		if err != nil {
			t.Fatal(err)
		}
		m.run("echo '%s' >/etc/fairlead/etcd.json", config)
		m.start()
	}
	var err error
	r.client, err = clientv3.New(clientv3.Config{Endpoints: urls, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.client.Close() })
	r.answers()
	for i := range members {
		w := &worker{node: r.newNode(1 + i), rig: r, random: rand.New(rand.NewPCG(seed, uint64(i+1))), holds: map[string]*hold{},
			counted: make(chan struct{}, 1)}
		w.plugin = filepath.Join(os.Getenv("CNI_PATH"), "cluster")
		r.nodes = append(r.nodes, w)
		w.run("ip route add default via 192.0.2.254; mkdir -p /sys/class/dmi/id; echo machine-%d >/sys/class/dmi/id/product_uuid", i)
		join := "init --pool p=10.9.0.0/25,28 --etcd " + strings.Join(urls, ",")
		if i > 0 {
			join = "join " + r.nodes[0].run("fairlead cluster token")
		}
		w.run("fairlead cluster %s", join)
		w.startFleetAgent()
	}
	return r
}

// startFleetAgent starts the node's agent, which claims before four addresses are all that is left.
func (w *worker) startFleetAgent() {
	w.c.flags = []string{"--spare", "4"}
	w.startAgent()
}

func (m *etcdMember) start() {
	line := m.inside(m.program, "--config-file", "/etc/fairlead/etcd.json")
	m.process = start(m.c.t, line[0], line[1:]...)
}

// restart starts a member that was killed.
func (m *etcdMember) restart() {
	m.process.kill()
	m.start()
}

func (m *etcdMember) signal(s syscall.Signal) { _ = m.process.cmd.Process.Signal(s) }

// answers waits until a majority of etcd takes writes.
func (r *rig) answers() {
	r.t.Helper()
	for {
		ctx, stop := context.WithTimeout(r.t.Context(), time.Second)
		_, err := r.client.Put(ctx, "/test", "")
		stop()
		if err == nil {
			return
		}
		if r.t.Context().Err() != nil {
			r.t.Fatal(err)
		}
	}
}

// leader returns the member that leads.
func (r *rig) leader() *etcdMember {
	r.t.Helper()
	r.answers()
	for r.t.Context().Err() == nil {
		for _, m := range r.etcd {
			ctx, stop := context.WithTimeout(r.t.Context(), time.Second)
			status, err := r.client.Status(ctx, "http://"+m.address+":2379")
			stop()
			if err == nil && status.Leader == status.Header.MemberId {
				return m
			}
		}
	}
	r.t.Fatal("etcd has no leader")
	return nil
}

// most is how many containers a node has at most.
const most = 20

// begin lets a worker work until ctx ends.
func (w *worker) begin(ctx context.Context) {
	for ctx.Err() == nil {
		w.mu.Lock()
		w.step()
		w.mu.Unlock()
		select {
		case w.counted <- struct{}{}:
		default:
		}
	}
}

// step is one ADD or DEL.
func (w *worker) step() {
	w.calls++
	adds := w.random.IntN(2) == 0
	switch {
	case adds && len(w.holds) < most:
		w.add(fmt.Sprint("c", w.calls))
	case len(w.holds) > 0:
		w.del(w.any())
	}
}

// any returns one of the node's containers.
func (w *worker) any() string {
	n := w.random.IntN(len(w.holds))
	for container := range w.holds {
		if n--; n < 0 {
			return container
		}
	}
	return ""
}

// add attaches a container, if the node has an address.
func (w *worker) add(container string) bool {
	out, err := w.call("ADD", container)
	var result struct {
		IPs []struct{ Address string }
	}
	if err != nil || json.Unmarshal(out, &result) != nil || len(result.IPs) != 1 {
		w.failed, w.said = w.failed+1, string(out)
		w.detach(container) // as runtimes do after a failed ADD
		return false
	}
	w.holds[container] = w.rig.history.got(w.name, container, result.IPs[0].Address)
	return true
}

// refused attaches containers until the node has no address left, and wants the last error to have some texts.
func (w *worker) refused(texts ...string) {
	w.c.t.Helper()
	// On a busy machine, the agent may take longer than an ADD waits for it.
	const silent = "fairlead-agent does not answer"
	for n := 0; w.add(fmt.Sprintf("refused%d-%d", w.failed, n)) || strings.Contains(w.said, silent); n++ {
	}
	for _, text := range texts {
		if !strings.Contains(w.said, text) {
			w.c.t.Errorf("ADD: %q, want %q", w.said, text)
		}
	}
}

// del detaches a container.
func (w *worker) del(container string) {
	w.rig.history.gives(w.holds[container])
	delete(w.holds, container)
	w.detach(container)
}

// detach calls DEL. That fails only while the agent is stopped with the lock of the leases; clear repeats it.
func (w *worker) detach(container string) {
	out, err := w.call("DEL", container)
	if err == nil {
		return
	}
	if !strings.Contains(string(out), "it is held by a stopped process") {
		w.c.t.Errorf("DEL: %v: %s", err, out)
	}
	w.undone = append(w.undone, container)
}

func (w *worker) call(verb, container string) ([]byte, error) {
	line := w.inside("env", "CNI_COMMAND="+verb, "CNI_CONTAINERID="+container, "CNI_NETNS="+w.pods[0], "CNI_IFNAME=eth0",
		"CNI_PATH="+filepath.Dir(w.plugin), w.plugin)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Stdin = strings.NewReader(`{"cniVersion":"1.0.0","name":"pods","type":"ptp","ipam":{"type":"cluster"}}`)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, w.c.t.Output()
	err := cmd.Run()
	return out.Bytes(), err
}

// clear detaches all containers of a node, or ends them with the machine.
func (w *worker) clear(machine bool) {
	undone := w.undone
	w.undone = nil
	for _, container := range undone {
		if !machine {
			w.detach(container)
		}
	}
	for container, one := range w.holds {
		if !machine {
			w.del(container)
			continue
		}
		w.rig.history.gives(one)
		delete(w.holds, container)
	}
}

// works waits until each node has made some more calls.
func (r *rig) works(calls int) {
	for _, w := range r.nodes {
		for range calls {
			<-w.counted
		}
	}
}

// moves lets a node give all its blocks back and claim one anew, which shows that etcd and the node's agent are in service.
func (r *rig) moves(w *worker) {
	r.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.clear(false)
	w.until("fairlead cluster drain "+w.name, "", true)
	w.until("fairlead cluster blocks -o json "+w.name, `"owners"`, false)
	w.until("fairlead cluster drain --undo "+w.name, "", true)
	w.until("fairlead cluster blocks -o json "+w.name, `"owners"`, true)
	for !w.add("again") {
		if r.t.Context().Err() != nil {
			r.t.Fatal("no address on " + w.name)
		}
	}
	w.del("again")
}

// until repeats a command until it succeeds and says a text, or does not say it.
func (w *worker) until(line, text string, says bool) {
	w.c.t.Helper()
	for {
		said, failed := w.try(line)
		if !failed && strings.Contains(said, text) == says {
			return
		}
		if w.c.t.Context().Err() != nil {
			w.c.t.Fatal(line, said)
		}
	}
}
