package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
	"github.com/fairlead-cni/fairlead/cluster/etcd"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/ipam"
)

func TestMain(m *testing.M) { nstest.Main(m) }

const url = "http://127.0.0.1:2379"

// startEtcd starts etcd, with an empty directory, and waits until it answers.
func startEtcd(t *testing.T) {
	nstest.NeedProgram(t, "etcd")
	dir, err := os.MkdirTemp("/run", "etcd") // which is no disk: the tests do not wait for it
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("etcd", "--data-dir", dir, "--log-level", "error")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	s := open(t, "none")
	for s.CheckVersion(t.Context()) != nil {
		if t.Context().Err() != nil {
			t.Fatal("etcd does not answer")
		}
	}
}

func open(t *testing.T, cluster string) *etcd.Store {
	s, err := etcd.Open(etcd.Access{Cluster: cluster, Endpoints: []string{url}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// does runs a command line, and returns its answer, or its error behind the status.
func does(t *testing.T, line string) string {
	t.Helper()
	return doesArgs(t, strings.Fields(line)...)
}

// doesArgs is does for arguments that have spaces, or are empty.
func doesArgs(t *testing.T, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	status := Main(t.Context(), args, &out, &errs)
	t.Logf("%q: %d\n%s%s", args, status, out.String(), errs.String())
	switch status {
	case 0:
		return out.String()
	case 1:
		return "failed: " + errs.String()
	}
	return "usage: " + errs.String()
}

// lease makes a lease of a network, as host-local does.
func lease(t *testing.T, network, address, container string) {
	t.Helper()
	dir := filepath.Join("/var/lib/cni/networks", network)
	err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, address), []byte(container+"\r\neth0"), 0o644))
	if err != nil {
		t.Fatal(err)
	}
}

// Each command of a fleet's life, and what it says.
func TestCommands(t *testing.T) {
	startEtcd(t)
	file := filepath.Join(t.TempDir(), "fleet.json")
	says := func(line string, parts ...string) {
		t.Helper()
		got := does(t, line+" --file "+file)
		for _, part := range parts {
			if !strings.Contains(got, part) {
				t.Errorf("%s: no %q in %q", line, part, got)
			}
		}
	}
	says("nodes", "failed: ", "joined no cluster", "fairlead cluster init or join")
	says("nodes --etcd "+url, "has no cluster fleet: make it with fairlead cluster init")
	says("init --etcd "+url+" --pool a=10.9.0.0/24 --pool b=10.9.0.128/25", "pool b (10.9.0.128/25) overlaps pool a (10.9.0.0/24)")
	says("init --etcd "+url+" --pool a=10.9.0.0/24,20", "pool a (10.9.0.0/24) with blocks of /20: a block is larger than the pool: want /24 to /28")
	says("init --etcd "+url+" --pool a=10.9.0.0/24,64", "pool a (10.9.0.0/24) with blocks of /64 in 1 parts: a part has fewer than 4 addresses: want /24 to /30")
	says("init --etcd "+url+" --pool a=10.9.0.0/24,26,3", "pool a (10.9.0.0/24) with blocks of 3 parts: want 1, 2, 4 or 8")
	says("init --etcd "+url+" --pool a", "usage: ", "want NAME=CIDR")
	says("init --etcd "+url+" --pool Mo/re=10.9.0.0/24", "usage: ", `name "Mo/re" has the character '/'`)
	says("init --etcd "+url, "--pool: want at least one")
	says("init --etcd "+url+" --pool a=10.9.0.1/24", "want 10.9.0.0/24")
	nstest.Run(t, "sh", "-ec", "ip link add lan0 type bridge; ip link set lan0 up; ip addr add 10.12.0.1/24 dev lan0")
	says("init --etcd "+url+" --pool a=10.12.0.0/16", "pool a (10.12.0.0/16) overlaps the network 10.12.0.0/24 of link lan0 of this node")
	says("init --etcd 127.0.0.1:2379 --pool a=10.9.0.0/24", `"127.0.0.1:2379" is no URL`)
	says("init --etcd "+url+" --pool a=10.9.0.0/24 --pool six=fd00:9::/64", "this node is of the cluster fleet", "fairlead cluster join fairlead1.")
	says("init --etcd "+url+" --pool c=10.10.0.0/24", "failed: ", "this node is of the cluster fleet already", "fairlead cluster token prints")
	again := does(t, "init --etcd "+url+" --pool c=10.10.0.0/24 --file "+filepath.Join(t.TempDir(), "fleet.json"))
	if want := "is a cluster fleet, with the pools a (10.9.0.0/24), six (fd00:9::/64)"; !strings.Contains(again, want) {
		t.Errorf("%q, want %q", again, want)
	}
	says("init --cluster other --etcd "+url+" --pool c=10.10.0.0/24", "this node is of the cluster fleet", "and this is the cluster other",
		"say --cluster fleet if you mean that one")
	says("init --store-ip 192.0.2.1 --etcd "+url+" --pool c=10.10.0.0/24", "usage: ", "--store-ip: with --etcd, this machine runs no etcd")
	says("join --store-ip 192.0.2.1 x", "usage: ", "--store-ip: want --store too")
	says("pools", "a", "10.9.0.0/24", "/26", "4", "fd00:9::/64", "/122", "288230376151711744")
	says("pools add Mo/re=10.66.0.0/20", "usage: ", `pool Mo/re (10.66.0.0/20): name "Mo/re" has the character '/'`)
	says("pools add lo=127.0.0.0/16", "usage: ", "pool lo (127.0.0.0/16): 127.0.0.0/8 is the loopback network of each host")
	if got := does(t, "pools --file "+file); strings.Contains(got, "Mo/re") || strings.Contains(got, "127.0.0.0") {
		t.Error("a pool that was refused is there: ", got)
	}
	says("pools add b=10.9.0.64/26", "pool b (10.9.0.64/26) overlaps pool a (10.9.0.0/24)")
	says("pools add lan=10.12.0.128/25", "pool lan (10.12.0.128/25) overlaps the network 10.12.0.0/24 of link lan0 of this node")
	says("pools add lan=10.12.0.0/24,closed", "10.12.0.0/24")
	says("pools add b=10.10.0.0/25", "10.10.0.0/25")
	says("pools add huge=fc00::/8,8", "is one block with 1329227995784915872903807060280344573 addresses")
	says("pools remove huge", "10.10.0.0/25")
	says("pools add old=10.11.0.0/16,24,closed", "10.11.0.0/16", "closed")
	says("pools add old=10.12.0.0/24,pinned,closed", "is pinned and closed")
	says("pools add t=10.13.0.0/24,reclaim=30m", "failed: ", "pool t (10.13.0.0/24): reclaim: 30m: want manual, or a time from 1h to 8760h")
	says("pools add t=10.13.0.0/24,reclaim=soon", "usage: ", `reclaim: "soon": want manual, or a time`)
	says("pools reclaim a=1m", "failed: ", "pool a (10.9.0.0/24): reclaim: 1m: want manual")
	says("pools reclaim a", "usage: ", `pool a: reclaim: "": want manual`)
	says("pools reclaim ghost=1h", `the cluster has no pool "ghost"`)
	says("pools reclaim old=2h", "2h ")
	says("pools reclaim old=manual", "manual")
	says("pools reclaim a=1h", "1h ")
	says("pools -o json", `"reclaim": "1h"`, `"reclaim": "manual"`)
	says("pools add t=10.13.0.0/24,fence=drop", "failed: ", "pool t (10.13.0.0/24) has fence=drop and reclaim=manual: no node has a deadline then: "+
		"want a time too, such as reclaim=2h, or fence=none")
	says("pools add t=10.13.0.0/24,reclaim=2h,fence=dorp", "usage: ", `fence: "dorp": want drop or none; did you mean "drop"?`)
	says("pools add t=10.13.0.0/24,reclaim=2h,fence=", "usage: ", `fence: "": want drop or none`)
	says("pools add t=10.13.0.0/24,reclaim=2h,fense=drop", "usage: ", `"fense=drop": want reclaim=TIME or fence=drop; did you mean "fence=drop"?`)
	says("pools add t=10.13.0.0/24,fence=drop,reclaim=2h", "2h, fence=drop")
	says("pools -o json", `"fence": "drop"`)
	says("pools fence a=everything", "usage: ", `pool a: fence: "everything": want drop or none`)
	says("pools fence a", "usage: ", `pool a: fence: "": want drop or none`)
	says("pools fence six=drop", "failed: ", "pool six (fd00:9::/64) has fence=drop and reclaim=manual")
	says("pools fence ghost=drop", `the cluster has no pool "ghost"`)
	says("pools reclaim t=manual", "failed: ", "has fence=drop and reclaim=manual")
	says("pools fence t=none", "2h ")
	says("pools reclaim t=3h,fence=drop", "3h, fence=drop")
	says("pools reclaim t=3h,closed", "usage: ", `pool t: "3h,closed": want no more than reclaim=TIME and fence=drop`)
	says("pools fence t=none,reclaim=manual", "10.13.0.0/24")
	says("adopt", "usage: ", "--pool: want the name of a pool")
	says("adopt --pool ghost", `the cluster has no pool "ghost"; it has a (10.9.0.0/24), six (fd00:9::/64), lan (10.12.0.0/24), b (10.10.0.0/25), old (10.11.0.0/16)`)
	says("adopt --pool old", "nothing is to be done")
	says("adopt --pool old --from ghost", "failed: ", `--from: no network "ghost" has leases on this node: there are no others`)
	lease(t, "former", "10.11.3.2", "c1")
	lease(t, "former", "10.11.3.1", "c2")
	says("adopt --pool old", "failed: ", "10.11.3.1 of container c2 is the first, the second or the last address of the block 10.11.3.0/24")
	lease(t, "wide", "10.11.4.2", "c3")
	lease(t, "wide", "10.50.4.2", "c4")
	says("adopt --pool old --from ghost", "failed: ", `--from: no network "ghost" has leases on this node: there are former, wide`)
	says("adopt --pool old --from /ghost", "failed: ", "nothing is taken over: open /ghost: no such file or directory")
	says("adopt --pool old --from wide", "failed: ", "10.50.4.2", "is not in any range of the network", "\nend the containers that this names")
	for n := range 63 {
		lease(t, "scattered", fmt.Sprintf("10.11.%d.9", 100+n), fmt.Sprint("s", n))
	}
	says("adopt --pool old --from scattered", "failed: ", "the leases are in 63 blocks, and a node adopts at most 62 at once")
	lease(t, "one", "10.11.4.3", "c6")
	says("adopt --pool old --from one", "failed: ", "the agent of network pods does not answer", "start fairlead-agent on this node")
	says("pools open ghost", `the cluster has no pool "ghost"`)
	says("pools open old", "open")
	says("pools remove ghost", `the cluster has no pool "ghost"`)
	says("pools close old", "closed")
	if got := does(t, "pools remove old --file "+file); strings.Contains(got, "old") {
		t.Error("the pool stays: ", got)
	}
	says("pools add one=10.14.0.0/30", "pool one (10.14.0.0/30) is one block with 1 addresses for containers: one node alone can have it")
	says("pools remove one", "10.9.0.0/24")
	says("pools add two=10.14.0.0/25", "pool two (10.14.0.0/25) has 2 blocks with 61 addresses for containers each")
	says("pools burn two", "usage: ", "pools burn two: want add NAME=CIDR")
	says("drain", "usage: ", "drain: NODE is missing: want fairlead cluster drain NODE [--undo]: fairlead cluster -h")
	says("drain a b", "usage: ", `drain: "b" is one argument too many`)
	says("nodes -o json", "[]")
	says("nodes -o yaml", "usage: ", "want text or json")
	says("paint", "usage: ", `"paint" is no command`)
	says("forget ghost", `the cluster has no node "ghost"`)
	says("readopt", "nothing is to be done")
	says("members remove default", "failed: ", "member default stays, because too few of the others answer", "it is the only one")

	stop := startMember(t, "web1")
	says("nodes", "web1", "v1", "member")
	says("blocks", "10.9.0.", "/26", "web1")
	says("blocks other", "failed: ", `the cluster has no node "other"; it has web1`)
	says("export other", "failed: ", `the cluster has no node "other"; it has web1`)
	says("export web1", `"subnet": "10.9.0.`, `/26"`)
	says("forget web1 --confirmed-dead", "failed: ", "the agent of node web1 runs: it has 1 blocks")
	stop()
	says("nodes", "web1", "does not run", "member, loses a after 1h")
	says("pools reclaim a=manual", "manual")
	if got := does(t, "nodes --file "+file); strings.Contains(got, "loses") {
		t.Error("the node loses a pool that nobody takes: ", got)
	}
	says("pools remove a", "failed: ", "pool a stays: these nodes own blocks of it: web1 (1). Close it")
	says("drain web1", "node web1 has 1 blocks")
	says("nodes", "drains")
	says("drain --undo web1", "claims addresses again")
	says("forget web1", "failed: ", "say --confirmed-dead")
	says("forget web1 --confirmed-dead", "node web1 is forgotten")
	says("blocks", "(rests, was of web1)")
	says("pools remove a", "failed: ", "rests, because a node lost it")
	says("nodes -o json", "[]")
}

// A pinned address is a range of one address in the subnet of its pool, because host-local wants no subnet of one address.
func TestExportPinned(t *testing.T) {
	pinned := blocks.Pool{Name: "fixed", Prefix: netip.MustParsePrefix("10.72.0.0/24"), Bits: 32, Parts: 1, Pinned: true}
	pools := []etcd.PoolInfo{{Pool: blocks.Pool{Name: "a", Prefix: netip.MustParsePrefix("10.9.0.0/24")}}, {Pool: pinned}}
	for prefix, want := range map[string]string{
		"10.72.0.7/32": `{"subnet":"10.72.0.0/24","rangeStart":"10.72.0.7","rangeEnd":"10.72.0.7"}`,
		"10.9.0.64/26": `{"subnet":"10.9.0.64/26"}`,
	} {
		b, err := json.Marshal(exportedOf(netip.MustParsePrefix(prefix), pools))
		var back ipam.Range
		if err = errors.Join(err, json.Unmarshal(b, &back)); err != nil || string(b) != want {
			t.Errorf("%s: %s, %v: want %s", prefix, b, err, want)
		}
		if _, err := ipam.Complete([]ipam.Set{{Path: "ranges[0]", Ranges: []ipam.Range{back}}}); err != nil {
			t.Error(err)
		}
	}
}

// After etcd was restored, nodes claim again when all have said what they have, but for those whose machines are off.
func TestReadopt(t *testing.T) {
	startEtcd(t)
	file := " --file " + filepath.Join(t.TempDir(), "fleet.json")
	does(t, "init --etcd "+url+" --pool a=10.9.0.0/24"+file)
	startMember(t, "web1")()
	stop := startMember(t, "web2")
	s := open(t, "fleet")
	v, err := s.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c := *v.Config()
	c.Store = "the former one"
	restored := blocks.Txn{Put: []blocks.Pair{{Key: blocks.Key{Kind: blocks.ConfigKey}, Value: blocks.Value{Config: &c}}}}
	if _, err := s.Commit(t.Context(), restored); err != nil {
		t.Fatal(err)
	}
	for said := ""; !strings.Contains(said, "web1") || strings.Contains(said, "web2"); said = does(t, "readopt"+file) {
		if t.Context().Err() != nil {
			t.Fatal("web2 does not say what it has")
		}
	}
	for _, c := range []struct{ flags, want string }{
		{"", "failed: fairlead cluster: node web1 has not said what it has, and its agent does not run"},
		{" --without web2", "failed: fairlead cluster: --without: the agent of node web2 runs"},
		{" --without web9", `the cluster has no node "web9"`},
		{" --without web1", "nodes claim addresses again"},
		{"", "nothing is to be done"},
	} {
		if got := does(t, "readopt --done"+c.flags+file); !strings.Contains(got, c.want) {
			t.Errorf("readopt --done%s: %q, want %q", c.flags, got, c.want)
		}
	}
	stop()
}

// startMember runs a node until it has a block. Stop ends its agent.
func startMember(t *testing.T, name string) (stop func()) {
	s := open(t, "fleet")
	view := etcd.NewView()
	m := etcd.NewMember(s, view, name, blocks.Host{Name: name, Version: "v1"})
	published, said := make(chan struct{}, 1), make(chan struct{}, 1)
	m.Pools, m.Least, m.Published = []string{"a"}, 1, func() { published <- struct{}{} }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- m.Run(ctx) }()
	<-published
	go s.Follow(ctx, view, func(bool) {
		if n, err := view.Member(name); err == nil && n.Alive {
			select {
			case said <- struct{}{}:
			default:
			}
		}
	}, func(err error) { t.Error(err) })
	<-said
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// A token brings the files that a node needs. One of another cluster, or a part of one, joins nothing.
func TestToken(t *testing.T) {
	startEtcd(t)
	first, further := filepath.Join(t.TempDir(), "fleet.json"), filepath.Join(t.TempDir(), "fleet.json")
	does(t, "init --etcd "+url+" --pool a=10.9.0.0/24 --file "+first)
	text := strings.TrimSpace(does(t, "token --file "+first))
	if got := does(t, "join "+text[:len(text)-9]+" --file "+further); !strings.Contains(got, "this is no token, or a part of one") {
		t.Error(got)
	}
	decoded, err := decode(text)
	if err != nil {
		t.Fatal(err)
	}
	changed := func(change func(*token)) string {
		other := decoded
		change(&other)
		text, err := other.text()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	for want, token := range map[string]string{
		"the token is of the cluster fleet in the etcd 1234, and etcd at " + url: changed(func(t *token) { t.Store = "1234" }),
		"has no cluster other, of which the token is":                            changed(func(t *token) { t.Cluster = "other" }),
		`"../x" is not the name of a file`:                                       changed(func(t *token) { t.Files = map[string]string{"../x": "y"} }),
		"read 10-pods.conflist: file does not exist":                             changed(func(t *token) { t.Files = nil }),
		"10-pods.conflist:1:1: ":                                                 changed(func(t *token) { t.Files = map[string]string{"10-pods.conflist": "garbage"} }),
		"10-pods.conflist:1:1: there is no JSON":                                 changed(func(t *token) { t.Files = map[string]string{"10-pods.conflist": ""} }),
		`network: name "../x" begins with '.'`:                                   changed(func(t *token) { t.Network = "../x" }),
		"--etcd-cacert: fleet-ca.crt has no certificate in PEM": changed(func(t *token) {
			t.CA, t.Files = "fleet-ca.crt", map[string]string{"fleet-ca.crt": "", t.Conf: t.Files[t.Conf]}
		}),
		"a character of it is wrong": text[:30] + "!" + text[31:],
		"http://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused": changed(func(t *token) {
			t.Endpoints = []string{"http://127.0.0.1:1"}
		}),
	} {
		if got := does(t, "join "+token+" --file "+further); !strings.HasPrefix(got, "failed: ") || !strings.Contains(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		if _, err := os.Stat(further); err == nil {
			t.Errorf("%s: the node has joined", want)
		}
		if left, err := os.ReadDir(filepath.Dir(further)); err != nil || len(left) > 0 {
			t.Errorf("%s: left are %v, %v", want, left, err)
		}
	}
	if got := does(t, "join "+text+" --file "+further); !strings.Contains(got, "this node is of the cluster fleet") {
		t.Error(got)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(further), "10-pods.conflist")); err != nil {
		t.Error(err)
	}
}

// With -o json an error is a document, too.
func TestErrorDocument(t *testing.T) {
	for line, exit := range map[string]int{"pools -o json --file none.json": 1, "nodes a b -o json": 2} {
		var out, errs bytes.Buffer
		if got := Main(t.Context(), strings.Fields(line), &out, &errs); got != exit {
			t.Errorf("%s: %d, want %d", line, got, exit)
		}
		var doc struct {
			Error string
			Exit  int
		}
		if err := json.Unmarshal(errs.Bytes(), &doc); err != nil || doc.Error == "" || doc.Exit != exit || out.Len() > 0 {
			t.Errorf("%s: %q, %q, %v", line, out.String(), errs.String(), err)
		}
	}
}
