package fleet

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/cluster/agent"
	"github.com/fairlead-cni/fairlead/cluster/etcd"
	"github.com/fairlead-cni/fairlead/internal/plainfile"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/record"
)

// A store is a member of Fairlead's own etcd on this machine.
type store struct {
	dir string // of its certificates and its configuration
	ip  string // flag: by which other machines reach it
	own netip.Addr
}

func (s *store) define(flags *flag.FlagSet) {
	flags.StringVar(&s.ip, "store-ip", "", "`ADDRESS` by which other machines reach the etcd of this one (default: that of the link "+
		"with a default route)")
}

// dataDir is where etcd keeps what it was told.
const dataDir = "/var/lib/fairlead/store"

// storeUnit is how systemd knows fairlead-store.
const storeUnit = "fairlead-store.service"

// locate completes where the member's files are, and at which address it is.
func (s *store) locate(c *call) error {
	s.dir = storeDir(c)
	if s.ip != "" {
		ip, err := netip.ParseAddr(s.ip)
		if err != nil || !ip.IsGlobalUnicast() {
			return fmt.Errorf("--store-ip: %q is not an address that other machines can reach: %w", s.ip, errUsage)
		}
		s.own = ip.Unmap()
		return nil
	}
	host, err := kernel.Open("")
	if err != nil {
		return err
	}
	defer host.Close()
	ips, err := agent.NodeIPs(host)
	if err == nil && len(ips) == 0 {
		err = errors.New("no link of this host has a default route: say --store-ip, by which other machines reach its etcd, or --etcd " +
			"for an etcd that runs")
	}
	if err != nil {
		return err
	}
	s.own = ips[0]
	return nil
}

// storeDir is where a machine that has a member of the cluster's own etcd has its files.
func storeDir(c *call) string { return filepath.Join(filepath.Dir(c.file), "store") }

func (s *store) path(name string) string { return filepath.Join(s.dir, name) }

// url returns where the member listens.
func (s *store) url(port uint16) string { return "https://" + netip.AddrPortFrom(s.own, port).String() }

// The ports of etcd.
const (
	clientPort = 2379
	peerPort   = 2380
)

// root is how an administrator reaches etcd.
func (s *store) root(cluster string, endpoints []string) etcd.Access {
	return etcd.Access{Cluster: cluster, Endpoints: endpoints, CA: s.path(caCert), Cert: s.path("root.crt"), Key: s.path("root.key"),
		Own: true}
}

// configure writes the configuration of the member, and the certificate of its address. State is new or existing, as
// etcd's --initial-cluster-state.
func (s *store) configure(initial, state string) error {
	ca, err := readAuthority(s.dir)
	if err != nil {
		return err
	}
	if err := ca.issue(s.path("member"), memberName, net.IP(s.own.AsSlice())); err != nil {
		return err
	}
	type security struct {
		Cert       string   `json:"cert-file"`
		Key        string   `json:"key-file"`
		ClientTo   bool     `json:"client-cert-auth"`
		Trusted    string   `json:"trusted-ca-file"`
		AllowedCN  []string `json:"allowed-cn,omitempty"`
		AnyAddress bool     `json:"skip-client-san-verification,omitempty"` // from which another member connects
	}
	tls := security{Cert: s.path("member.crt"), Key: s.path("member.key"), ClientTo: true, Trusted: s.path(caCert)}
	peers := tls
	peers.AllowedCN, peers.AnyAddress = []string{memberName}, true // the certificate of a node makes no member
	b, err := json.MarshalIndent(map[string]any{
		"name": s.own.String(), "data-dir": dataDir,
		"listen-client-urls": s.url(clientPort), "advertise-client-urls": s.url(clientPort),
		"listen-peer-urls": s.url(peerPort), "initial-advertise-peer-urls": s.url(peerPort),
		"initial-cluster": initial, "initial-cluster-state": state,
		"initial-cluster-token":     rand.Text(), // without one, all that are made on this machine have one identifier
		"client-transport-security": tls, "peer-transport-security": peers,
		"auto-compaction-mode": "periodic", "auto-compaction-retention": "1h",
		"log-level": "warn", "log-outputs": []string{"stderr"},
	}, "", "  ")
	if err != nil {
		return err
	}
	return record.Replace(s.path("config.json"), append(b, '\n'), true)
}

// isConfigured reports whether the configuration of a member is there.
func (s *store) isConfigured() (bool, error) {
	file := s.path("config.json")
	b, err := plainfile.Read(file, plainfile.MaxSize)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var has struct {
		Dir string `json:"data-dir"`
	}
	if json.Unmarshal(b, &has) != nil || has.Dir == "" {
		return false, fmt.Errorf("%s is not what fairlead cluster init writes: want JSON with a data-dir. If %s has no data of a member yet, "+
			"remove the directory %s, and repeat", file, dataDir, s.dir)
	}
	return true, nil
}

// begin makes an etcd on this machine, if there is none yet, and returns how nodes reach it.
func (s *store) begin(ctx context.Context, c *call, cluster string) (a etcd.Access, err error) {
	if err := s.locate(c); err != nil {
		return a, err
	}
	dir := filepath.Dir(c.file)
	a = etcd.Access{Cluster: cmp.Or(cluster, etcd.DefaultCluster), Endpoints: []string{s.url(clientPort)}, Own: true,
		CA: filepath.Join(dir, "fleet-ca.crt"), Cert: filepath.Join(dir, "fleet.crt"), Key: filepath.Join(dir, "fleet.key")}
	isThere, err := s.isConfigured()
	if err == nil && !isThere {
		err = s.first(a)
	}
	if err != nil {
		return a, err
	}
	admin, err := etcd.Open(s.root(a.Cluster, a.Endpoints))
	if err != nil {
		return a, err
	}
	defer admin.Close()
	if err := s.run(ctx, admin, "init"); err != nil {
		return a, err
	}
	return a, admin.Protect(ctx)
}

// first makes the keys of a cluster, and the configuration of its first member.
func (s *store) first(a etcd.Access) error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	ca, err := newAuthority(s.dir)
	if err != nil {
		return err
	}
	err = errors.Join(
		ca.issue(s.path("root"), etcd.RootUser, nil),
		ca.issue(strings.TrimSuffix(a.Cert, ".crt"), etcd.NodeUser, nil),
		writeFiles(filepath.Dir(a.CA), map[string]string{filepath.Base(a.CA): string(ca.pem)}),
	)
	if err != nil {
		return err
	}
	return s.configure(s.own.String()+"="+s.url(peerPort), "new")
}

// slowest is the longest time that a member may take from its start until it answers.
const slowest = time.Minute

// run starts the member where systemd runs, and waits until it answers.
func (s *store) run(ctx context.Context, member *etcd.Store, verb string) error {
	started, err := startUnit(storeUnit)
	if err != nil {
		return fmt.Errorf("the etcd of this machine does not start: %w", err)
	}
	ctx, stop := context.WithTimeout(ctx, slowest)
	defer stop()
	for {
		err := member.CheckVersion(ctx)
		if err == nil {
			return nil
		}
		if !started {
			return fmt.Errorf("start the etcd of this machine, and repeat fairlead cluster %s: fairlead-store --config-file %s\n%w",
				verb, s.path("config.json"), err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: journalctl -u %s says why", err, storeUnit)
		case <-time.After(slowest / 600):
		}
	}
}

// startUnit starts a unit, and enables it for later boots. systemctl(1) says where the reason is if it does not run.
func startUnit(unit string) (started bool, err error) {
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return false, nil
	}
	if out, err := exec.Command("systemctl", "enable", "--now", unit).CombinedOutput(); err != nil {
		return false, fmt.Errorf("systemctl enable --now %s: %w: %s", unit, err, strings.TrimSpace(string(out)))
	}
	return true, nil
}

// secrets are the files that a further member needs, by their names in the directory.
func (s *store) secrets() (files map[string]string, err error) {
	files = map[string]string{}
	for _, name := range []string{caCert, caKey, "root.crt", "root.key"} {
		b, err := plainfile.ReadLinked(s.path(name), plainfile.MaxSize)
		if errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("this machine has no member of the cluster's own etcd: %w", err)
		}
		if err != nil {
			return nil, err
		}
		files[name] = string(b)
	}
	return files, nil
}

// further makes this machine one more member of the cluster's own etcd.
func (s *store) further(ctx context.Context, t token) error {
	err := errors.Join(os.MkdirAll(s.dir, 0o700), writeFiles(s.dir, t.Authority))
	if err != nil {
		return err
	}
	admin, err := etcd.Open(s.root(t.Cluster, t.Endpoints))
	if err != nil {
		return err
	}
	defer admin.Close()
	if err := s.forgotten(ctx, admin); err != nil {
		return err
	}
	initial, err := admin.AddStoreMember(ctx, s.own.String(), s.url(peerPort))
	if err != nil {
		return err
	}
	if err := s.configure(initial, "existing"); err != nil {
		return err
	}
	member, err := etcd.Open(s.root(t.Cluster, []string{s.url(clientPort)}))
	if err != nil {
		return err
	}
	defer member.Close()
	if err := s.run(ctx, member, "join TOKEN --store"); err != nil {
		return err
	}
	return admin.PromoteStoreMember(ctx, s.url(peerPort))
}

// forgotten refuses data of a member that the cluster has removed: etcd would not start with it.
func (s *store) forgotten(ctx context.Context, admin *etcd.Store) error {
	if _, err := os.Stat(filepath.Join(dataDir, "member")); err != nil {
		return nil
	}
	list, err := admin.StoreMembers(ctx)
	if err != nil || slices.ContainsFunc(list, func(m etcd.StoreMember) bool { return slices.Contains(m.Peers, s.url(peerPort)) }) {
		return err
	}
	return fmt.Errorf("%s has the data of a member that is none of this etcd: if nothing else needs it, end fairlead-store on this machine, "+
		"remove the directory, and repeat", dataDir)
}

// members returns where the members of the cluster's own etcd answer nodes by now, or where this node asks if none can say so.
func members(ctx context.Context, a etcd.Access) (urls []string) {
	s, err := etcd.Open(a)
	if err != nil {
		return a.Endpoints
	}
	defer s.Close()
	list, err := s.StoreMembers(ctx)
	for _, m := range list {
		if !m.Learner {
			urls = append(urls, m.Clients...)
		}
	}
	if err != nil || len(urls) == 0 {
		return s.Endpoints()
	}
	return urls
}

func membersVerb() verb {
	return verb{name: "members", most: 2, operands: "[remove MEMBER]",
		does: "List the members of etcd, or remove one that is gone for good.",
		ask: func(ctx context.Context, c *call, s *etcd.Store, v *etcd.View, operands []string) error {
			if len(operands) > 0 && (operands[0] != "remove" || len(operands) != 2) {
				return fmt.Errorf("members %s: want remove MEMBER, or nothing: %w", strings.Join(operands, " "), errUsage)
			}
			list, err := membersAfter(ctx, c, s, operands)
			if err != nil {
				return err
			}
			return c.print(list, func(w io.Writer) {
				fmt.Fprintln(w, "MEMBER\tURL\tSTATE")
				for _, m := range list {
					printf(w, "%s\t%s\t%s\n", cmp.Or(m.Name, "(has never run)"), strings.Join(m.Peers, ","), memberState(m))
				}
			})
		}}
}

// membersAfter removes the member that operands name behind "remove", with the rights of an administrator where this machine has
// them, and returns the others, or all if there are no operands.
func membersAfter(ctx context.Context, c *call, s *etcd.Store, operands []string) ([]etcd.StoreMember, error) {
	if len(operands) == 0 {
		return s.StoreMembers(ctx)
	}
	j, err := c.joined()
	if err != nil {
		return nil, err
	}
	a := j.Access
	if a.Own {
		a = (&store{dir: storeDir(c)}).root(j.Cluster, j.Endpoints)
	}
	admin, err := etcd.Open(a)
	if err != nil {
		return nil, err
	}
	defer admin.Close()
	return admin.RemoveStoreMember(ctx, operands[1])
}

func memberState(m etcd.StoreMember) string {
	switch {
	case !m.Answers:
		return "does not answer"
	case m.Learner:
		return "gets the data"
	}
	return "answers"
}
