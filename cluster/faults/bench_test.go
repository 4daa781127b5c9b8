package faults

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// The benchmarks measure what docs/cluster.md says of a cluster of 1,000 nodes. `make bench-cluster` runs each once, on a
// machine that does nothing else.

// BenchmarkThousandNodes is the agent of a node beside 1,000 nodes: how long it takes from its start until all are
// programmed, and from a new Node object until that one is; and what it takes in the second minute after that, in which each
// node reports its state as kubelets do, every five minutes.
func BenchmarkThousandNodes(b *testing.B) {
	const nodes, report = 1000, 5 * time.Minute
	c := newCluster(b)
	n := c.newNode(1)
	n.join()
	c.join(nodes)
	agentProgram(b) // builds it
	for b.Loop() {
		begun := time.Now()
		n.startAgent()
		b.ReportMetric(ms(time.Since(begun)), "ms/start")
		n.has(nodes)

		joined := time.Now()
		c.api.set("new", []string{"198.51.100.251"}, []string{"10.99.0.0/24"})
		n.until("10.99.0.0/24", true)
		b.ReportMetric(ms(time.Since(joined)), "ms/change")

		pid := n.agentPID()
		heartbeats(c, nodes, report) // until each path was tested once
		before, sent := processorTime(b, pid), c.api.bytes()
		heartbeats(c, nodes, report)
		b.ReportMetric(100*(processorTime(b, pid)-before).Seconds()/60, "%core/rest")
		b.ReportMetric(float64(c.api.bytes()-sent)/1024, "KiB/minute")
		b.ReportMetric(float64(resident(b, pid))/1024, "MiB/resident")
		n.agent.kill()
	}
}

// heartbeats are those of a minute.
func heartbeats(c *cluster, nodes int, every time.Duration) {
	reports := time.NewTicker(every / time.Duration(nodes))
	defer reports.Stop()
	minute := time.After(time.Minute)
	for i := 0; ; i++ {
		select {
		case <-reports.C:
			c.api.touch(fmt.Sprint("x", i%nodes))
		case <-minute:
			return
		}
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// agentPID is the agent's process, which nsenter(1) became.
func (n *node) agentPID() int { return n.agent.cmd.Process.Pid }

// processorTime is the time that a process has had a processor.
func processorTime(b *testing.B, pid int) time.Duration {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), ") ") // fields from the third on
	fields := strings.Fields(after)
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	const tick = time.Second / 100 // USER_HZ
	return time.Duration(user+system) * tick
}

// resident is the memory of a process that is in use, in KiB.
func resident(b *testing.B, pid int) int {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "VmRSS:")
	size, _ := strconv.Atoi(strings.Fields(after)[0])
	return size
}

// BenchmarkThroughput sends TCP from a container to one of another node, and by a VXLAN device that was made by hand
// beside it, in turn. It reports the ratio of the medians, and both.
func BenchmarkThroughput(b *testing.B) {
	c := newCluster(b)
	nodes := []*node{c.newNode(1), c.newNode(2)}
	var pods, addresses []string
	for _, n := range nodes {
		n.join()
		n.startAgent()
	}
	nodes[0].until(nodes[1].podCIDR, true)
	for i, n := range nodes {
		pod, address := n.newPod()
		pods, addresses = append(pods, pod), append(addresses, address)
		n.byHand(i+1, pod)
	}
	const rounds = 9
	for b.Loop() {
		var ours, byHand []float64
		for range rounds {
			ours = append(ours, throughput(b, pods[0], pods[1], addresses[1]))
			byHand = append(byHand, throughput(b, pods[0], pods[1], "10.77.2.2"))
		}
		b.ReportMetric(median(ours), "Gbit/s")
		b.ReportMetric(median(byHand), "Gbit/s-by-hand")
		b.ReportMetric(median(ours)/median(byHand), "ratio")
	}
}

// byHand connects a container by a second interface, 10.77.i.2, and a VXLAN device with the smallest set of entries.
func (n *node) byHand(i int, pod string) {
	n.c.t.Helper()
	other := 3 - i
	n.run(`ip link add hand type vxlan id 99 dstport 4789 local %[1]s nolearning
ip link set hand address 02:00:00:00:99:0%[2]d up mtu 1450
bridge fdb append 02:00:00:00:99:0%[3]d dev hand dst 192.0.2.%[3]d
ip neigh add 169.254.9.%[3]d lladdr 02:00:00:00:99:0%[3]d dev hand
ip route add 10.77.%[3]d.0/24 via 169.254.9.%[3]d dev hand onlink
ip link add pod%[2]d type veth peer name eth1 netns %[4]s
ip link set pod%[2]d up
ip addr add 10.77.%[2]d.1/24 dev pod%[2]d`, n.address, i, other, pod)
	nstest.RunIn(n.c.t, pod, "sh", "-ec", fmt.Sprintf(`ip link set eth1 up mtu 1450; ip addr add 10.77.%[1]d.2/24 dev eth1
ip route add 10.77.%[2]d.0/24 via 10.77.%[1]d.1`, i, other))
}

// throughput sends for a second, and returns Gbit/s.
func throughput(b *testing.B, from, to, address string) float64 {
	b.Helper()
	var l net.Listener
	must := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	must(nstest.In(to, func() (err error) { l, err = net.Listen("tcp4", net.JoinHostPort(address, "0")); return err }))
	defer l.Close()
	type received struct {
		bytes int64
		err   error
	}
	done := make(chan received, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			done <- received{0, err}
			return
		}
		defer conn.Close()
		n, err := io.Copy(io.Discard, conn)
		done <- received{n, err}
	}()
	var conn net.Conn
	must(nstest.In(from, func() (err error) { conn, err = net.Dial("tcp4", l.Addr().String()); return err }))
	begun, block := time.Now(), make([]byte, 1<<17)
	for time.Since(begun) < time.Second {
		_, err := conn.Write(block)
		must(err)
	}
	must(conn.Close())
	r := <-done
	must(r.err)
	return float64(r.bytes) * 8 / time.Since(begun).Seconds() / 1e9
}

func median[T cmp.Ordered](of []T) T {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[len(sorted)/2]
}

// BenchmarkAdd attaches containers with the plugin cluster and with host-local in turn, whose range is the same. It
// reports the ratios of the medians and of the 99th percentiles, and both with the plugin cluster.
func BenchmarkAdd(b *testing.B) {
	c := newCluster(b)
	n := c.newNode(1)
	n.join()
	n.startAgent()
	for b.Loop() {
		n.addBeside(n.podCIDR)
	}
}

// addBeside attaches 300 containers with the plugin cluster, and as many with host-local in a range, in turn.
func (n *node) addBeside(subnet string) {
	b := n.c.t.(*testing.B)
	dir := b.TempDir()
	program := nstest.Build(b, tree, "./cmd/cni")
	for _, name := range []string{"ptp", "cluster", "host-local"} {
		if err := os.Symlink(program, filepath.Join(dir, name)); err != nil {
			b.Fatal(err)
		}
	}
	const conf = `{"cniVersion":"1.0.0","name":%q,"type":"ptp","ipam":%s}`
	hostLocal := fmt.Sprintf(`{"type":"host-local","ranges":[[{"subnet":%q}]],"routes":[{"dst":"0.0.0.0/0","mtu":1450}]}`, subnet)
	cases := []struct {
		conf  string
		times []time.Duration
	}{{conf: fmt.Sprintf(conf, "pods", `{"type":"cluster"}`)}, {conf: fmt.Sprintf(conf, "other", hostLocal)}}
	const containers = 300
	for range containers {
		for k := range cases {
			netns := n.pods[k]
			call := func(verb string) time.Duration {
				line := n.inside("env", "CNI_COMMAND="+verb, "CNI_CONTAINERID=c", "CNI_NETNS="+netns, "CNI_IFNAME=eth0",
					"CNI_PATH="+dir, filepath.Join(dir, "ptp"))
				cmd := exec.Command(line[0], line[1:]...)
				cmd.Stdin = strings.NewReader(cases[k].conf)
				var out bytes.Buffer
				cmd.Stdout, cmd.Stderr = &out, &out
				begun := time.Now()
				if err := cmd.Run(); err != nil {
					b.Fatalf("%s: %v\n%s", verb, err, out.Bytes())
				}
				return time.Since(begun)
			}
			cases[k].times = append(cases[k].times, call("ADD"))
			call("DEL")
		}
	}
	for name, share := range map[string]int{"p50": 50, "p99": 99} {
		cluster, other := percentile(cases[0].times, share), percentile(cases[1].times, share)
		b.ReportMetric(ms(cluster), "ms/ADD-"+name)
		b.ReportMetric(float64(cluster)/float64(other), "ratio-"+name)
	}
}

func percentile(of []time.Duration, share int) time.Duration {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[len(sorted)*share/100]
}
