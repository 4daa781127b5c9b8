package plugin_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// An audience is a bridge with a container on it that hears what others announce, and the network that they come from.
type audience struct {
	*runner
	t     *testing.T
	data  string // dataDir
	heard *os.File
	n     *int // how many containers there have been
}

// listens has a container be the one that hears.
func (a *audience) listens(netns string) {
	a.t.Helper()
	fd := -1
	err := nstest.In(netns, func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK,
			int(unix.ETH_P_ALL<<8|unix.ETH_P_ALL>>8)&0xffff)
		return err
	})
	if err != nil {
		a.t.Fatal(err)
	}
	a.heard = os.NewFile(uintptr(fd), "listener")
	a.t.Cleanup(func() { a.heard.Close() })
}

const announcedLists = `"type":"bridge","bridge":"br-tell","ipam":{"type":"host-local","dataDir":"DATA","ranges":[[{"subnet":"10.78.0.0/24"}],[{"subnet":"fd00:78::/64"}]]}`

// newAudience attaches the listener, from the same network as all else.
func newAudience(t *testing.T) *audience {
	a := &audience{t: t, data: t.TempDir(), n: new(int)}
	a.runner = newRunner(t, chain{name: "tell", plugins: []string{strings.ReplaceAll(announcedLists, "DATA", a.data)}})
	return a
}

func (a *audience) list(conf string) *audience {
	other := *a
	r := *a.runner
	r.chain.plugins = []string{strings.ReplaceAll(conf, "DATA", a.data)}
	other.runner = &r
	return &other
}

// attach attaches a new container.
func (a *audience) attach() *attachment {
	a.t.Helper()
	*a.n++
	c := &attachment{id: fmt.Sprint("tell", *a.n), netns: nstest.NewNS(a.t)}
	a.must("ADD", a.add(c))
	return c
}

// tells expects that the listener hears of each address of a container that has been attached, or of none before what
// it sends next.
func (a *audience) tells(c *attachment, want bool) {
	a.t.Helper()
	res, err := spec.DecodeResult(c.prev, spec.V110)
	if err != nil {
		a.t.Fatal(err)
	}
	if !want {
		nstest.RunIn(a.t, c.netns, "sh", "-c", `ping -c1 -W1 -b -I eth0 10.78.0.255 >/dev/null 2>&1 || true`)
	}
	if err := a.heard.SetReadDeadline(nstest.Deadline(a.t)); err != nil {
		a.t.Fatal(err)
	}
	heard := map[netip.Addr]bool{}
	for b := make([]byte, 1600); len(heard) < len(res.IPs); {
		n, err := a.heard.Read(b)
		if err != nil {
			a.t.Errorf("%s: announced are %v of %v: %v", c.id, heard, res.IPs, err)
			return
		}
		f := b[:n]
		for _, ip := range res.IPs {
			addr := ip.Address.Addr()
			switch raw := addr.AsSlice(); {
			case addr.Is4() && n >= 42 && bytes.Equal(f[12:14], []byte{8, 6}) && bytes.Equal(f[28:32], raw) &&
				bytes.Equal(f[38:42], raw),
				addr.Is6() && n >= 78 && bytes.Equal(f[12:14], []byte{0x86, 0xdd}) && f[20] == unix.IPPROTO_ICMPV6 &&
					f[54] == 136 && bytes.Equal(f[62:78], raw):
				heard[addr] = true
			case !want && addr.Is4() && n >= 34 && bytes.Equal(f[12:14], []byte{8, 0}) && bytes.Equal(f[26:30], raw):
				if len(heard) > 0 {
					a.t.Errorf("%s: announced are %v, want none", c.id, heard)
				}
				return
			}
		}
	}
	if !want {
		a.t.Errorf("%s: announced are %v, want none", c.id, heard)
	}
}

// TestAnnouncedOnBridge: an address that nobody has had on a bridge is not announced to its ports, and every other is,
// and those of which that cannot be proven. Each case changes something after a first container has been attached,
// which listens.
func TestAnnouncedOnBridge(t *testing.T) {
	sh := func(script string) func(*testing.T, *audience) *attachment {
		return func(t *testing.T, a *audience) *attachment {
			cmd := exec.Command("sh", "-ec", strings.ReplaceAll(script, "DATA", a.data))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			return a.attach()
		}
	}
	network := func(conf string) func(*testing.T, *audience) *attachment {
		return func(t *testing.T, a *audience) *attachment { return a.list(conf).attach() }
	}
	elsewhere := strings.NewReplacer("10.78.0.0/24", "10.78.0.128/25", "fd00:78::/64",
		"fd00:78::8000/113").Replace(announcedLists)
	cases := []struct {
		name string
		do   func(*testing.T, *audience) *attachment
		want bool
	}{
		{"new", sh(":"), false},
		{"again", func(t *testing.T, a *audience) *attachment {
			small := a.list(strings.ReplaceAll(announcedLists, `"subnet":"10.78.0.0/24"`, `"subnet":"10.78.0.0/24","rangeStart":"10.78.0.2","rangeEnd":"10.78.0.3"`))
			first := small.attach()
			small.tells(first, false)
			a.must("DEL", small.del(first))
			return small.attach()
		}, true},
		{"static", network(`"type":"bridge","bridge":"br-tell","ipam":{"type":"static","addresses":[{"address":"10.78.0.99/24"}]}`), true},
		{"by name", network(strings.TrimSuffix(announcedLists, "}") + `},"args":{"cni":{"ips":["10.78.0.99/24","fd00:78::99/64"]}}`), true},
		{"held by static before", func(t *testing.T, a *audience) *attachment {
			by := a.list(`"type":"bridge","bridge":"br-tell","ipam":{"type":"static","addresses":[{"address":"10.78.0.3/24"}]}`)
			before := by.attach()
			a.must("DEL", by.del(before))
			return a.list(strings.ReplaceAll(announcedLists, `,[{"subnet":"fd00:78::/64"}]`, ``)).attach()
		}, true},
		{"another program's IPAM", func(t *testing.T, a *audience) *attachment {
			const answer = `#!/bin/sh
cat >/dev/null; [ $CNI_COMMAND != ADD ] || echo '{"cniVersion":"1.1.0","ips":[{"address":"10.78.0.99/24"}]}'`
			if err := os.WriteFile(filepath.Join(a.dir, "elsewhere"), []byte(answer), 0o755); err != nil {
				t.Fatal(err)
			}
			return a.list(`"type":"bridge","bridge":"br-tell","ipam":{"type":"elsewhere"}`).attach()
		}, true},
		{"a second list", func(t *testing.T, a *audience) *attachment {
			other := a.list(elsewhere)
			other.chain.name = "second"
			return other.attach()
		}, true},
		{"another directory", network(strings.ReplaceAll(elsewhere, "DATA", "DATA/more")), true},
		// As the reference's host-local leaves it: a lease came, and another went.
		{"a lease of others", sh(`cd DATA/life-tell; echo x > 10.78.0.50`), true},
		{"a lease of others that is gone", sh(`cd DATA/life-tell; echo x > 10.78.0.50; rm 10.78.0.50`), true},
		{"a lease of others, seen by a GC", func(t *testing.T, a *audience) *attachment {
			file := filepath.Join(a.data, "life-tell", "10.78.0.50")
			if err := os.WriteFile(file, []byte("x\r\neth0"), 0o600); err != nil {
				t.Fatal(err)
			}
			a.must("GC", a.gc("tell1"))
			return a.attach()
		}, true},
		{"a GC that finds nothing", func(t *testing.T, a *audience) *attachment {
			a.must("GC", a.gc("tell1"))
			return a.attach()
		}, false},
		{"no directory", sh(`rm -r DATA/life-tell`), true},
		{"no directory and no index", func(t *testing.T, a *audience) *attachment {
			for _, dir := range []string{"life-tell", ".fairlead-index"} {
				if err := os.RemoveAll(filepath.Join(a.data, dir)); err != nil {
					t.Fatal(err)
				}
			}
			return a.list(elsewhere).attach()
		}, true},
		{"no index", sh(`rm -r DATA/.fairlead-index`), true},
		{"no history", sh(`rm -r /run/cni/fairlead/history`), true},
		{"a pipe in the place of the ports", sh(`cd /run/cni/fairlead/history/br-tell; rm -f ports; mkfifo ports`), false},
		{"a torn history", sh(`cd /run/cni/fairlead/history/br-tell; truncate -s 5 made`), true},
		{"restored from a backup", func(t *testing.T, a *audience) *attachment {
			copied := t.TempDir()
			clone := func(from, to string) {
				if out, err := exec.Command("cp", "-a", from+"/.", to).CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
			}
			clone(a.data, copied)
			was := a.attach()
			a.tells(was, false)
			a.must("DEL", a.del(was))
			for _, f := range []string{"10.78.0.2", "fd00:78::2"} { // the backup has them, and nothing that came later stays
				if _, err := os.Stat(filepath.Join(a.data, "life-tell", f)); err != nil {
					t.Fatal(err)
				}
			}
			clone(copied, a.data)
			return a.attach()
		}, true},
		{"a foreign port", sh(`ip link add v0 up master br-tell type veth peer name v1`), true},
		{"a port whose name was chosen", func(t *testing.T, a *audience) *attachment {
			a.list(strings.Replace(announcedLists, `,"ipam"`, `,"hostInterfaceName":"web0","ipam"`, 1)).attach()
			return a.attach()
		}, false},
		{"a foreign port that is gone", sh(`ip link add v0 up master br-tell type veth peer name v1; ip link del v0`), false},
		{"a port without addresses", func(t *testing.T, a *audience) *attachment {
			bare := a.list(`"type":"bridge","bridge":"br-tell","ipam":{}`)
			a.must("DEL", bare.del(bare.attach()))
			return a.attach()
		}, true},
		{"the bridge made anew", func(t *testing.T, a *audience) *attachment {
			nstest.RunIn(t, a.host, "ip", "link", "del", "br-tell")
			c := a.attach()
			a.listens(c.netns)
			return a.attach()
		}, false},
	}
	for _, tt := range cases {
		nstest.Apart(t, tt.name, func(t *testing.T) {
			a := newAudience(t)
			a.listens(a.attach().netns)
			a.tells(tt.do(t, a), tt.want)
		})
	}
	nstest.Apart(t, "a bridge that was there", func(t *testing.T) {
		a := newAudience(t)
		nstest.RunIn(t, a.host, "ip", "link", "add", "br-tell", "up", "type", "bridge")
		a.listens(a.attach().netns)
		a.tells(a.attach(), true)
	})
}
