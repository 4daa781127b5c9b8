//go:build kube

package kubetest

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// A site is a cluster of three machines. Two are in one segment, the third one in another. The first one has what
// governs the cluster, too.
type site struct {
	*cluster
	families string // of nodes, pods and Services: "4", "6", "46"
	pods     string // the ranges of pods
	dns      string // the address of the name servers' Service
	machines []*machine
	kubectl  string // path of the configuration
}

//go:embed dns.yaml
var dnsObjects string

// newSite is a site whose nodes are ready.
func newSite(t *testing.T, families, proxyMode string) *site {
	t.Helper()
	ranges := map[string][3]string{
		"4":  {"10.244.0.0/16", "10.96.0.0/16", "10.96.0.10"},
		"6":  {"fd00:244::/56", "fd00:96::/112", "fd00:96::a"},
		"46": {"10.244.0.0/16,fd00:244::/56", "10.96.0.0/16,fd00:96::/112", "10.96.0.10"},
	}[families]
	mountCgroups(t, "n1", "n2", "n3")
	newSegment(t, 1)
	newSegment(t, 2)
	s := &site{families: families, pods: ranges[0], dns: ranges[2],
		machines: []*machine{newMachine(t, 1, 1), newMachine(t, 2, 1), newMachine(t, 3, 2)}}
	first := s.machines[0]
	s.cluster = &cluster{t: t, dir: t.TempDir(), address: first.ips(families)[0], services: ranges[1], inside: first.inside}
	s.serve()
	s.kubectl = s.kubeconfig(admin)
	go s.start(program(t, "kube-controller-manager"), "--kubeconfig", s.kubeconfig(controllerManager), "--leader-elect=false",
		"--use-service-account-credentials", // controllers have roles of their own
		"--allocate-node-cidrs", "--cluster-cidr", s.pods, "--service-cluster-ip-range", s.services,
		"--root-ca-file", filepath.Join(s.dir, "certs/apiserver.crt"), "--node-monitor-grace-period", "10m",
		"--service-account-private-key-file", filepath.Join(s.dir, "key.pem")).log()
	go s.start(program(t, "kube-scheduler"), "--kubeconfig", s.kubeconfig(scheduler), "--leader-elect=false").log()

	images := filepath.Join(t.TempDir(), "images.tar")
	nstest.Run(t, "./images.sh", filepath.Dir(program(t, "agnhost")), images)
	for _, m := range s.machines {
		m.startRuntime(images)
		m.startKubelet(s.cluster, families, s.dns)
		m.startProxy(s.cluster, proxyMode, s.pods)
	}
	for _, m := range s.machines {
		s.eventually(func() error { // kubelet makes the Node object
			_, err := s.try("get", "node", m.name)
			return err
		})
	}
	// The agents install the network's configuration when pods can be attached, by which a node is ready.
	s.do("apply", "-k", s.manifests("cluster"))
	for _, m := range s.machines {
		s.do("wait", "--for=condition=Ready", "node/"+m.name, "--timeout=10m")
	}
	return s
}

// manifests makes a kustomization of the base with components, and returns its directory.
func (s *site) manifests(components ...string) (dir string) {
	s.t.Helper()
	packaging, err := filepath.Abs("../../packaging/kubernetes")
	if err != nil {
		s.t.Fatal(err)
	}
	dir = s.t.TempDir()
	relative, err := filepath.Rel(dir, packaging)
	if err != nil {
		s.t.Fatal(err)
	}
	for i, c := range components {
		components[i] = filepath.Join(relative, c)
	}
	text, err := json.Marshal(map[string]any{"resources": []string{filepath.Join(relative, "base")}, "components": components,
		"images": []map[string]string{{"name": "fairlead", "newTag": "test"}}})
	if err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), text, 0o600); err != nil {
		s.t.Fatal(err)
	}
	return dir
}

// remove ends the pods and removes the network, as docs/cluster.md says, and looks at what is left on the machines.
func (s *site) remove() {
	s.t.Helper()
	s.do("delete", "pod", "--all", "--wait")
	s.do("-n", "kube-system", "delete", "deployment", "coredns", "--cascade=foreground", "--wait")
	gone := s.manifests("cluster", "uninstall", "cluster/remove")
	s.do("apply", "-k", gone)
	s.do("-n", "fairlead", "rollout", "status", "ds/fairlead", "--timeout=10m")
	s.do("delete", "-k", gone)
	for _, m := range s.machines {
		left := m.run("sh", "-c", "ip -br link show type vxlan; ip route show proto 118; ip -6 route show proto 118; "+
			"find /etc/cni/net.d /opt/cni/bin /run/fairlead -type f; nft list sets | grep elements || true")
		if left != "" {
			s.t.Errorf("%s has, after removal: %s", m.name, left)
		}
	}
}

// startDNS starts the cluster's name servers.
func (s *site) startDNS() {
	s.t.Helper()
	s.apply(strings.ReplaceAll(dnsObjects, "ADDRESS", s.dns))
	s.do("-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=10m")
}

// try runs kubectl.
func (s *site) try(args ...string) (string, error) {
	cmd := exec.CommandContext(nstest.Context(s.t), program(s.t, "kubectl"), append([]string{"--kubeconfig", s.kubectl}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("kubectl %q: %w: %s", args, err, out)
	}
	return strings.TrimSpace(string(out)), err
}

// do runs kubectl, which has to succeed.
func (s *site) do(args ...string) string {
	s.t.Helper()
	out, err := s.try(args...)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// apply gives the API server objects.
func (s *site) apply(objects string) {
	s.t.Helper()
	cmd := exec.CommandContext(nstest.Context(s.t), program(s.t, "kubectl"), "--kubeconfig", s.kubectl, "apply", "-f", "-")
	cmd.Stdin = strings.NewReader(objects)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		s.t.Fatal(err, out.String())
	}
}

// A pod answers at port 8080 with its name and with whom it sees.
type pod struct {
	name string
	on   *machine
	ips  []netip.Addr
}

// startPods starts a pod on each machine, another on the first one, and a Service of each with one at a node's port; web2
// has a port of its host, too.
func (s *site) startPods() (pods []*pod) {
	s.t.Helper()
	for i, m := range append(s.machines, s.machines[0]) {
		pods = append(pods, &pod{name: fmt.Sprint("web", i+1), on: m})
	}
	for i, p := range pods {
		s.apply(fmt.Sprintf(`{"apiVersion":"v1","kind":"List","items":[
{"apiVersion":"v1","kind":"Pod","metadata":{"name":%[1]q,"labels":{"name":%[1]q,"app":"web"}},
 "spec":{"nodeName":%[2]q,"terminationGracePeriodSeconds":1,"containers":[{"name":"agnhost",
  "image":"registry.k8s.io/e2e-test-images/agnhost:2.59","args":["netexec","--http-port=8080","--udp-port=8081"],
  "ports":[{"containerPort":8080%[3]s}],"readinessProbe":{"httpGet":{"path":"/hostname","port":8080},"timeoutSeconds":30}}]}},
{"apiVersion":"v1","kind":"Service","metadata":{"name":%[1]q},"spec":{"type":"NodePort","ipFamilyPolicy":"PreferDualStack",
 "selector":{"name":%[1]q},"ports":[{"port":80,"targetPort":8080,"nodePort":%[4]d}]}}]}`,
			p.name, p.on.name, map[bool]string{true: `,"hostPort":8888`}[p.name == "web2"], 30081+i))
	}
	s.do("wait", "--for=condition=Ready", "pod", "-l", "app=web", "--timeout=10m")
	for _, p := range pods {
		p.ips = s.addresses("pod", p.name, "{.status.podIPs}", "ip")
	}
	return pods
}

// addresses are those of an object.
func (s *site) addresses(kind, name, path, key string) (all []netip.Addr) {
	s.t.Helper()
	text := s.do("get", kind, name, "-o", "jsonpath="+path)
	var objects []any
	if err := json.Unmarshal([]byte(text), &objects); err != nil {
		s.t.Fatal(text, err)
	}
	for _, object := range objects {
		address, ok := object.(string)
		if !ok {
			address = object.(map[string]any)[key].(string)
		}
		all = append(all, netip.MustParseAddr(address))
	}
	if len(all) != len(s.families) {
		s.t.Fatalf("%s %s has %v, and the cluster the families %s", kind, name, all, s.families)
	}
	return all
}

// asks sends a request from a pod, and returns what was answered.
func (s *site) asks(from *pod, host string, port int, path string) (string, error) {
	return s.try("exec", from.name, "--", "curl", "-gsS", "--max-time", "60", url(host, port, path))
}

func url(host string, port int, path string) string {
	return "http://" + net.JoinHostPort(host, fmt.Sprint(port)) + path
}

// hears waits until the pod called name answers a request to an address, which from sends.
func (s *site) hears(from *pod, host string, port int, name string) {
	s.t.Helper()
	s.eventually(func() error { // kube-proxy may not have heard of it
		answer, err := s.asks(from, host, port, "/hostname")
		if err == nil && answer != name {
			err = fmt.Errorf("%s answers %s at %s instead of %s", answer, from.name, host, name)
		}
		return err
	})
}

// Pods of three nodes reach each other by their addresses, which nobody translates, and by Services, in both modes of
// kube-proxy. Agents are replaced, and everything is removed.
func testSite(t *testing.T, families string) {
	s := newSite(t, families, "nftables")
	pods := s.startPods()
	s.testPods(pods)
	s.testServices(pods)
	for _, m := range s.machines {
		m.startProxy(s.cluster, "iptables", s.pods)
	}
	s.testServices(pods)
	s.testPods(pods)
	s.startDNS()
	for _, from := range pods {
		s.hears(from, "web3.default.svc.cluster.local", 80, "web3")
	}

	s.do("-n", "fairlead", "rollout", "restart", "ds/fairlead")
	s.do("-n", "fairlead", "rollout", "status", "ds/fairlead", "--timeout=10m")
	s.testPods(pods)
	s.remove()
}

func TestMachines(t *testing.T)          { testSite(t, "4") }
func TestMachinesIPv6(t *testing.T)      { testSite(t, "6") }
func TestMachinesDualStack(t *testing.T) { testSite(t, "46") }

// testPods has each pod ask each other one, which has to see its address, and each machine ask each pod.
func (s *site) testPods(pods []*pod) {
	s.t.Helper()
	for i := range s.families {
		for _, to := range pods {
			for _, from := range pods {
				answer, err := s.asks(from, to.ips[i].String(), 8080, "/clientip")
				seen, _, _ := net.SplitHostPort(answer)
				if err != nil || seen != from.ips[i].String() {
					s.t.Fatalf("%s is asked by %s with %v and sees %q, %v", to.name, from.name, from.ips[i], answer, err)
				}
			}
			for _, m := range s.machines {
				m.run("curl", "-gsS", "--max-time", "60", url(to.ips[i].String(), 8080, "/hostname"))
			}
		}
	}
	s.t.Log("pods and machines reach the pods")
}

// testServices asks the pods' Services: from each pod, those of its node and its own included, at the port of each node
// from outside of the cluster and from pods, and at the port of a host.
func (s *site) testServices(pods []*pod) {
	s.t.Helper()
	for i, family := range s.families {
		for j, to := range pods {
			service := s.addresses("service", to.name, "{.spec.clusterIPs}", "")[i].String()
			for _, from := range pods {
				s.hears(from, service, 80, to.name)
			}
			for _, m := range s.machines {
				node := m.addresses[family]
				s.hears(pods[0], node, 30081+j, to.name)
				nstest.Run(s.t, "curl", "-gsS", "--max-time", "60", url(node, 30081+j, "/hostname"))
			}
		}
		host := s.machines[1].addresses[family]
		for _, from := range pods {
			s.hears(from, host, 8888, "web2")
		}
		nstest.Run(s.t, "curl", "-gsS", "--max-time", "60", url(host, 8888, "/hostname"))
		s.machines[1].run("curl", "-gsS", "--max-time", "60", url(host, 8888, "/hostname"))
	}
	s.t.Log("Services, the nodes' ports and a host's port are answered")
}
