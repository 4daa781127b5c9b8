package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
	"github.com/fairlead-cni/fairlead/cluster/etcd"
	"github.com/fairlead-cni/fairlead/internal/plainfile"
	"github.com/fairlead-cni/fairlead/internal/spelling"
	"github.com/fairlead-cni/fairlead/kernel/record"
)

// conflist is the network of a fleet that has none yet.
const conflist = `{
  "cniVersion": "1.0.0",
  "cniVersions": ["1.0.0", "1.1.0"],
  "name": %q,
  "plugins": [
    {"type": "ptp", "ipMasq": true, "mtu": "auto", "capabilities": {"ips": true}, "ipam": {"type": "cluster"}},
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`

// blockBits are those in which the addresses of a block differ, unless the command says another length: a block has 64.
const blockBits = 6

// mostParts are those into which a block is divided, if it has room for parts of four addresses.
const mostParts = 4

// ParsePool reads NAME=CIDR, NAME=CIDR,BITS[,PARTS] or NAME=CIDR,pinned. BITS is the prefix length of a block, and PARTS into
// how many parts nodes divide one when no block is free. With ",closed" behind it, nodes claim only what they adopt. With
// ",reclaim=TIME" behind all, a node that is silent for that time loses its blocks. With ",fence=drop", it cuts off their
// containers before.
func ParsePool(text string) (p blocks.Pool, err error) {
	what, err := parseSilence(text, &p)
	if err != nil {
		return p, fmt.Errorf("--pool %q: %w", text, err)
	}
	open, closed := strings.CutSuffix(what, ",closed")
	p.Closed = closed
	name, rest, named := strings.Cut(open, "=")
	cidr, sizes, sized := strings.Cut(rest, ",")
	length, parts, divided := strings.Cut(sizes, ",")
	p.Name, p.Parts = name, 1
	p.Prefix, err = netip.ParsePrefix(cidr)
	if !named || name == "" || err != nil {
		return p, fmt.Errorf("--pool %q: want NAME=CIDR[,BITS[,PARTS]][,closed][,reclaim=TIME[,fence=drop]] or NAME=CIDR,pinned, "+
			"such as main=10.64.0.0/12,26", text)
	}
	if err := p.ValidateNew(); err != nil {
		return p, err
	}
	if length == "pinned" {
		p.Bits, p.Pinned = p.Prefix.Addr().BitLen(), true
		return p, nil
	}
	p.Bits = max(p.Prefix.Addr().BitLen()-blockBits, p.Prefix.Bits())
	if sized {
		if p.Bits, err = strconv.Atoi(length); err != nil {
			return p, fmt.Errorf("--pool %q: %q is not the prefix length of a block", text, length)
		}
	}
	if divided {
		if p.Parts, err = strconv.Atoi(parts); err != nil {
			return p, fmt.Errorf("--pool %q: %q is not the number of parts of a block", text, parts)
		}
		return p, nil
	}
	for room := p.Prefix.Addr().BitLen() - p.Bits; p.Parts < mostParts && 4*2*p.Parts <= 1<<max(0, min(room, 30)); {
		p.Parts *= 2
	}
	return p, nil
}

// parseSilence reads what a pool says of silent nodes, and returns the rest of the text.
func parseSilence(text string, p *blocks.Pool) (rest string, err error) {
	words := strings.Split(text, ",")
	kept := words[:1]
	for _, word := range words[1:] {
		key, value, isOption := strings.Cut(word, "=")
		switch {
		case !isOption:
			kept = append(kept, word)
		case key == reclaimKey:
			err = p.Reclaim.UnmarshalText([]byte(value))
		case key == fenceKey:
			p.Fence, err = blocks.ParseFence(value)
		default:
			err = fmt.Errorf("%q: want %s=TIME or %s=drop", word, reclaimKey, fenceKey)
			if near, ok := spelling.Nearest(key, []string{reclaimKey, fenceKey}); ok {
				err = fmt.Errorf("%w; did you mean %q?", err, near+"="+value)
			}
		}
		if err != nil {
			return "", err
		}
	}
	return strings.Join(kept, ","), nil
}

// The words for what happens to a silent node.
const (
	reclaimKey = "reclaim"
	fenceKey   = "fence"
)

func parsePools(texts []string) (pools []blocks.Pool, err error) {
	for _, text := range texts {
		p, err := ParsePool(text)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", err, errUsage)
		}
		pools = append(pools, p)
	}
	return pools, nil
}

func initVerb() verb {
	var pools list
	var network string
	var own store
	return verb{name: "init", options: "--pool NAME=CIDR [--etcd URL]",
		does: "Make a cluster, and let this node join it. It prints the token for further nodes. Without --etcd, this machine runs an " +
			"etcd for the cluster (fairlead-store).",
		flags: func(c *call) {
			c.flags.Var(&pools, "pool", "`NAME=CIDR[,BITS[,PARTS]]`: addresses that the nodes share in blocks of this prefix length, of "+
				"which nodes give each other parts when no block is free; may be repeated "+
				"(default of BITS: 26, for IPv6 122; of PARTS: 4). "+
				"NAME=CIDR,pinned: containers get these by name alone, on any node. With ,closed behind it, nodes claim only blocks in "+
				"which they have containers: see fairlead cluster adopt. With ,reclaim=TIME behind all, a node that is silent for that time, of 1h "+
				"or more, loses its blocks, and with ,fence=drop it cuts off their containers before: see docs/reclaim.md")
			c.flags.StringVar(&network, "network", etcd.DefaultNetwork, "`NAME` of the network whose containers get the addresses")
			own.define(c.flags)
		},
		run: func(ctx context.Context, c *call, operands []string) error {
			all, err := parsePools(pools)
			if err != nil {
				return err
			}
			j := etcd.Joined{Network: network}.With(c.access.Joined, c.access.endpoints)
			if own.ip != "" && len(j.Endpoints) > 0 {
				return fmt.Errorf("--store-ip: with --etcd, this machine runs no etcd: want one of them: %w", errUsage)
			}
			if err := c.mayInit(j, all); err != nil {
				return err
			}
			if len(j.Endpoints) == 0 {
				if j.Access, err = own.begin(ctx, c, j.Cluster); err != nil {
					return err
				}
			}
			s, err := etcd.Open(j.Access)
			if err != nil {
				return err
			}
			defer s.Close()
			if err := j.Access.Unreached(ctx, s.CheckVersion(ctx)); err != nil {
				return err
			}
			if j.Store, err = s.Init(ctx, all); err != nil {
				return c.again(j.Cluster, err)
			}
			if err := c.write(j, nil); err != nil {
				return err
			}
			return c.joinedText(j, all)
		}}
}

// again says what to do on a node that has made the cluster, or joined it.
func (c *call) again(cluster string, err error) error {
	j, rerr := c.read()
	if rerr != nil || j.Cluster != cluster || !errors.Is(err, etcd.ErrHasCluster) {
		return err
	}
	return fmt.Errorf("this node is of the cluster %s already (%s): fairlead cluster token prints the token for further nodes, and "+
		"fairlead cluster pools adds pools", cluster, c.file)
}

// mayInit returns an error if this node cannot make such a cluster. Nothing is made before.
func (c *call) mayInit(j etcd.Joined, pools []blocks.Pool) error {
	if err := etcd.ValidNetwork(j.Network); err != nil {
		return fmt.Errorf("--network: %w: %w", err, errUsage)
	}
	if err := etcd.ValidCluster(j.Cluster); err != nil {
		return fmt.Errorf("--cluster: %w: %w", err, errUsage)
	}
	_, _, haveConf := c.conf(j.Network)
	if err := errors.Join(blocks.Config{Pools: pools}.Validate(), c.mayWrite(j.Cluster), haveConf, j.Access.CheckFiles(os.ReadFile)); err != nil {
		return err
	}
	return fit(pools...)
}

// conf returns the path of a network's configuration, and whether it is there.
func (c *call) conf(network string) (path string, isThere bool, err error) {
	path = filepath.Join(filepath.Dir(c.file), "10-"+network+".conflist")
	b, err := plainfile.ReadLinked(path, plainfile.MaxSize)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return path, false, nil
	case err != nil:
		return path, true, err
	}
	return path, true, isNetwork(path, string(b), network)
}

func joinVerb() verb {
	var own store
	var more bool
	return verb{name: "join", operands: "TOKEN", options: "[--store]", least: 1, most: 1,
		does: "Let this node join the cluster of a token.",
		flags: func(c *call) {
			c.flags.BoolVar(&more, "store", false, "also run a member of the cluster's own etcd: three of them go on when one is lost. "+
				"The token has to be one of fairlead cluster token --store")
			own.define(c.flags)
		},
		run: func(ctx context.Context, c *call, operands []string) error {
			if own.ip != "" && !more {
				return fmt.Errorf("--store-ip: want --store too, or none of them: %w", errUsage)
			}
			t, err := decode(operands[0])
			if err != nil {
				return err
			}
			if err := c.mayWrite(t.Cluster); err != nil {
				return err
			}
			if more && t.Authority == nil {
				return errors.New("--store: the token is one for nodes: want one that fairlead cluster token --store prints, on a machine " +
					"that has a member")
			}
			dir := filepath.Dir(c.file)
			if err := t.prove(ctx, filepath.Join(dir, ".joining")); err != nil {
				return err
			}
			j := t.in(dir)
			if more {
				if err := own.locate(c); err != nil {
					return err
				}
				if err := own.further(ctx, t); err != nil {
					return err
				}
				if at := own.url(clientPort); !slices.Contains(j.Endpoints, at) {
					j.Endpoints = append(j.Endpoints, at)
				}
			}
			if err := c.write(j, t.Files); err != nil {
				return err
			}
			return c.joinedText(j, nil)
		}}
}

// mayWrite refuses to join a second cluster.
func (c *call) mayWrite(cluster string) error {
	j, err := c.read()
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if j.Cluster != cluster {
		stay := ""
		if c.access.Cluster != "" {
			stay = fmt.Sprintf("say --cluster %s if you mean that one; to leave it, ", j.Cluster)
		}
		return fmt.Errorf("this node is of the cluster %s (%s), and this is the cluster %s: %sdrain and forget the node, and remove "+
			"the file", j.Cluster, c.file, cluster, stay)
	}
	return nil
}

// write writes the files of a node that joins.
func (c *call) write(j etcd.Joined, files map[string]string) error {
	if j.Conf == "" {
		j.Network = cmp.Or(j.Network, etcd.DefaultNetwork)
		path, isThere, err := c.conf(j.Network)
		if err != nil {
			return err
		}
		if j.Conf = path; !isThere {
			made := map[string]string{filepath.Base(path): fmt.Sprintf(conflist, j.Network)}
			maps.Copy(made, files)
			files = made
		}
	}
	if err := writeFiles(filepath.Dir(c.file), files); err != nil {
		return err
	}
	return j.Write(c.file)
}

// writeFiles writes files that root alone may read.
func writeFiles(dir string, files map[string]string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, text := range files {
		if err := record.Replace(filepath.Join(dir, name), []byte(text), true); err != nil {
			return err
		}
	}
	return nil
}

// joinedText starts the agent, where systemd runs, and says what is next. Made are the pools of a cluster that this call made.
func (c *call) joinedText(j etcd.Joined, made []blocks.Pool) error {
	const unit = "fairlead-agent.service"
	start := "systemctl enable --now " + unit
	started, err := startUnit(unit)
	if err != nil {
		return fmt.Errorf("the node has joined, and its agent does not start: %w", err)
	}
	saved, err := c.read()
	if err != nil {
		return err
	}
	further, err := encode(saved, nil)
	if err != nil {
		return err
	}
	doc := map[string]any{"cluster": j.Cluster, "file": c.file, "started": started, "token": further}
	return c.print(doc, func(w io.Writer) {
		printf(w, "this node is of the cluster %s (%s)\n", j.Cluster, c.file)
		if !started {
			printf(w, "start its agent: %s, or fairlead-agent --etcd-config %s\n", start, c.file)
		}
		for _, p := range made {
			printf(w, "%s\n", gives(p))
		}
		if made != nil {
			printf(w, "on each further node, which needs fairlead and fairlead-agent:\n\n  fairlead cluster join %s\n", further)
		}
	})
}

// A list is a flag that may be repeated.
type list []string

func (l *list) String() string { return strings.Join(*l, " ") }

// Set implements flag.Value.
func (l *list) Set(text string) error {
	*l = append(*l, cmp.Or(text, "\"\""))
	return nil
}
