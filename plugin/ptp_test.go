package plugin_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// cables makes the runner of network a or b of containers that each have a cable of their own.
func (s *site) cables(name string, more ...string) *runner {
	r := s.network(name, more...)
	i := int(name[0]-'a') + 81
	r.chain.plugins[0] = fmt.Sprintf(`"type":"ptp","ipMasq":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.%d.0.0/24"}],[{"subnet":"fd00:%[1]d::/64"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}`, i)
	return r
}

// ping sends two echo requests from a namespace, and waits for the answers.
func (s *site) ping(from, to string) {
	s.Helper()
	s.sh(from, "busybox ping -q -c 2 -i 0.1 -W 600 "+to)
}

// TestPtpPackets sends packets from container to container, to the host, and beyond it, where nobody has a way back
// but to the host.
//
// clause: P20 P26 C11
func TestPtpPackets(t *testing.T) {
	for _, backend := range []string{"nftables", "iptables"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.sh("host", "sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0; for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 1 > $f; done")
			s.sh("outside", "ip route del default; ip -6 route del default")
			r := s.cables("a", published)
			r.chain.plugins[0] += `,"ipMasqBackend":"` + backend + `","mtu":1400`
			s.cables("b")
			s.add("a1")
			r.chain.plugins = r.chain.plugins[:1]
			s.add("a2")
			s.add("b1")
			s.serve("host")
			for v, host := range []string{"192.0.2.1", "2001:db8::1"} {
				at := func(name string) string { return net.JoinHostPort(s.addr[name][v], "80") }
				s.expect("within a network", "a2", at("a1"), "a1")
				s.expect("between networks", "b1", at("a1"), "a1")
				s.expect("to the outside", "a1", at("outside"), "outside")
				s.expect("to the gateway", "a2", net.JoinHostPort([]string{"10.81.0.1", "fd00:81::1"}[v], "80"), "host")
				s.expect("to the host's own address", "a2", net.JoinHostPort(host, "80"), "host")
				s.expect("from the host", "host", at("b1"), "b1")
				s.expect("from outside, published", "outside", net.JoinHostPort(host, "8080"), "a1")
				s.expect("from the same network, published", "a2", net.JoinHostPort(host, "8080"), "a1")
				s.expect("from the container itself, published", "a1", net.JoinHostPort(host, "8080"), "a1")
				s.ping("a1", s.addr["a2"][v])
				s.ping("a1", s.addr["b1"][v])
				s.ping("a1", s.addr["outside"][v])
				s.ping("host", s.addr["a1"][v])
			}
			if out := s.sh("a1", "ip -4 route get 10.81.0.77; ip -6 route get fd00:81::77"); strings.Count(out, "via") != 2 {
				t.Errorf("the subnet is not behind the gateway:\n%s", out)
			}
		})
	}
}

// TestPtpPolicy keeps containers apart by their cables.
func TestPtpPolicy(t *testing.T) {
	for _, backend := range []string{"nftables", "iptables"} {
		for _, policy := range []string{"isolated", "strict"} {
			t.Run(backend+"/"+policy, func(t *testing.T) {
				t.Parallel()
				s := newSite(t)
				fw := fmt.Sprintf(`"type":"firewall","backend":%q,"ingressPolicy":%q`, backend, policy)
				r := s.cables("a", published, fw)
				s.cables("b", fw)
				s.add("a1")
				r.chain.plugins = []string{r.chain.plugins[0], fw}
				s.add("a2")
				s.add("b1")
				for v, host := range []string{"192.0.2.1", "2001:db8::1"} {
					at := func(name string) string { return net.JoinHostPort(s.addr[name][v], "80") }
					s.expect("to the outside", "a1", at("outside"), "outside")
					s.expect("from the host", "host", at("a1"), "a1")
					s.expect("from outside, published", "outside", net.JoinHostPort(host, "8080"), "a1")
					s.expect("between networks", "b1", at("a1"), "")
					s.expect("between networks, back", "a1", at("b1"), "")
					s.expect("within a network", "a2", at("a1"), "")
				}
			})
		}
	}
}

// answers makes an IPAM plugin that gives what it is told, and takes anything back.
func (r *runner) answers(result string) string {
	r.t.Helper()
	script := "#!/bin/sh\n[ $CNI_COMMAND != ADD ] || cat <<'END'\n" + result + "\nEND\n"
	if err := os.WriteFile(filepath.Join(r.dir, "answers"), []byte(script), 0o755); err != nil {
		r.t.Fatal(err)
	}
	return `"ipam":{"type":"answers"}`
}

// TestPtpLoneAddresses has addresses that are all of their subnets, and gateways that are of none.
//
// clause: P17 P24 P26
func TestPtpLoneAddresses(t *testing.T) {
	s := newSite(t)
	r := s.cables("a")
	r.chain.plugins[0] = `"type":"ptp",` + r.answers(`{"cniVersion":"1.1.0","ips":[{"address":"10.81.0.5/32","gateway":"169.254.1.1"},{"address":"fd00:81::5/128","gateway":"fe80::1"}],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}`)
	s.add("a1")
	r.must("check", r.check(s.containers["a1"]))
	for v, addr := range s.addr["outside"] {
		s.expect("to the outside", "a1", net.JoinHostPort(addr, "80"), "outside")
		s.expect("from outside", "outside", net.JoinHostPort(s.addr["a1"][v], "80"), "a1")
	}
	res, err := spec.DecodeResult(s.containers["a1"].prev, spec.V110)
	r.must("decode", err)
	if f := res.Interfaces; len(f) != 2 || f[0].Sandbox != "" ||
		f[0].Name != identity.LinkName("veth", spec.Owner{Network: r.network(), ContainerID: "a1", IfName: "eth0"}) ||
		f[1].Name != "eth0" || f[1].Sandbox == "" || f[1].MAC == "" || f[1].MTU != 1500 {
		t.Errorf("interfaces %+v", f)
	}
	for _, ip := range res.IPs {
		if ip.Interface == nil || *ip.Interface != 1 {
			t.Errorf("address %v of interface %v", ip.Address, ip.Interface)
		}
	}
}

// TestPtpRefused leaves nothing of an ADD that cannot be.
//
// clause: P10 P11 I3
func TestPtpRefused(t *testing.T) {
	r := newRunner(t, chain{name: "ptp-refused"})
	warm := state(t)
	for name, c := range map[string]struct{ conf, say string }{
		"no ipam":    {`"type":"ptp"`, "ipam: is missing"},
		"no gateway": {`"type":"ptp",` + r.answers(`{"cniVersion":"1.1.0","ips":[{"address":"10.1.2.5/32"}]}`), "ipam: gave 10.1.2.5/32 without a gateway"},
	} {
		r.chain.plugins = []string{c.conf}
		a := &attachment{id: "c", netns: nstest.NewNS(t)}
		before := nstest.RunIn(t, a.netns, "ip", "addr")
		if err := r.add(a); err == nil || !strings.Contains(err.Error(), c.say) {
			t.Errorf("%s: add: %v", name, err)
		}
		if after := nstest.RunIn(t, a.netns, "ip", "addr"); after != before {
			t.Errorf("%s: the container has %s", name, after)
		}
		same(t, name, warm)
		r.must(name+": del", r.del(a))
	}
}

// TestPtpRouterAdvertisements has a container that calls itself a router from the moment it has an interface: the
// host believes none of it (CVE-2020-10749). With the protection taken away it does, which shows that the
// advertisements are good.
func TestPtpRouterAdvertisements(t *testing.T) {
	r := newRunner(t, chain{name: "ptp-ra", plugins: []string{`"type":"ptp","ipam":{"type":"host-local","subnet":"10.83.0.0/24"}`}})
	r.host = nstest.NewNS(t)
	nstest.RunIn(t, r.host, "ip", "link", "set", "lo", "up")
	host, err := kernel.Open(r.host)
	r.must("open", err)
	defer host.Close()
	a := &attachment{id: "c", netns: nstest.NewNS(t)}
	cont, err := kernel.Open(a.netns)
	r.must("open", err)
	defer cont.Close()

	nstest.RunIn(t, a.netns, "sysctl", "-qw", "net.ipv6.conf.default.accept_dad=0") // a router's address is there at once
	stop, sent := make(chan struct{}), make(chan struct{})
	go advertiseAlways(cont, stop, sent)
	r.must("add", r.add(a))
	link := identity.LinkName("veth", spec.Owner{Network: r.network(), ContainerID: "c", IfName: "eth0"})
	for range 20 {
		select {
		case <-sent:
		case <-nstest.Context(t).Done():
			t.Fatal("nothing is sent")
		}
	}
	nstest.RunIn(t, a.netns, "busybox", "ping", "-q", "-c", "1", "10.83.0.1") // comes after them
	believed := func() string {
		return nstest.RunIn(t, r.host, "sh", "-c", "ip -6 route show proto ra; ip -6 addr show to 2001:db8:bad::/64")
	}
	if s := believed(); s != "" {
		t.Errorf("the host believes its container:\n%s", s)
	}
	r.must("check", r.check(a))
	nstest.RunIn(t, r.host, "sysctl", "-qw", "net.ipv6.conf."+link+".accept_ra=1")
	if err := r.check(a); err == nil || !strings.Contains(err.Error(), "accept_ra is 1") {
		t.Errorf("check without the protection: %v", err)
	}
	err = rtnl.Await(host, t.Context(), 5e9, []uint{rtnl.IPv6RouteEvents, rtnl.IPv6AddrEvents}, func() (bool, error) {
		s := believed()
		return strings.Contains(s, "default") && strings.Contains(s, "2001:db8:bad:"), nil
	})
	if err != nil {
		t.Errorf("without the protection the host believes nothing, so the test shows nothing: %v", err)
	}
	close(stop)
	r.must("del", r.del(a))
}

// advertiseAlways sends router advertisements by eth0, as soon as there is one and as fast as it goes, until stop.
// Whoever waits hears of each by sent.
func advertiseAlways(ns *kernel.NS, stop, sent chan struct{}) {
	ra := make([]byte, 16+32)
	ra[0], ra[4] = 134, 64
	binary.BigEndian.PutUint16(ra[6:], 1800)
	copy(ra[16:], []byte{3, 4, 64, 0xc0})
	binary.BigEndian.PutUint32(ra[20:], 3600)
	binary.BigEndian.PutUint32(ra[24:], 3600)
	prefix := netip.MustParseAddr("2001:db8:bad::").As16()
	copy(ra[32:], prefix[:])
	fd := -1
	_ = ns.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
		return err
	})
	defer unix.Close(fd)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255)
	for {
		select {
		case <-stop:
			return
		default:
		}
		if i, err := rtnl.IndexOf(ns, "eth0"); err == nil {
			to := &unix.SockaddrInet6{Addr: netip.MustParseAddr("ff02::1").As16(), ZoneId: uint32(i)}
			if unix.Sendto(fd, ra, 0, to) == nil {
				select {
				case sent <- struct{}{}:
				default:
				}
			}
		}
		_, _ = unix.Poll(nil, 1) // a machine of two cores has more to do
	}
}

// TestPtpOfReference removes what the reference plugin has made: Debian's masquerades by iptables.
//
// clause: P12 P16
func TestPtpOfReference(t *testing.T) {
	const conf = `"type":"ptp","ipMasq":true,` + hostLocal
	r := newRunner(t, chain{name: "ptp-ref", plugins: []string{conf}})
	warm := &attachment{id: "w", netns: nstest.NewNS(t)}
	r.must("add", r.add(warm))
	r.must("del", r.del(warm))
	clean := state(t)
	for _, gone := range []bool{false, true} {
		ns := nstest.NewNS(t)
		nstest.NeedProgram(t, "/usr/lib/cni/ptp")
		cmd := exec.Command("/usr/lib/cni/ptp")
		cmd.Stdin = strings.NewReader(`{"cniVersion":"1.0.0","name":"` + r.network() + `",` + conf + `}`)
		cmd.Env = []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=c", "CNI_NETNS=" + ns, "CNI_IFNAME=eth0",
			"CNI_PATH=/usr/lib/cni", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("the reference plugin: %v: %s", err, out)
		}
		if s := nstest.Run(t, "iptables-save", "-t", "nat"); !strings.Contains(s, `id: \"c\"`) {
			t.Fatalf("the reference masquerades nothing:\n%s", s)
		}
		if gone {
			nstest.RunIn(t, ns, "ip", "link", "del", "eth0")
			if err := nstest.RemoveNS(ns); err != nil {
				t.Fatal(err)
			}
		}
		r.must("del without a result", r.del(&attachment{id: "c", netns: ns}))
		same(t, "DEL of what the reference made", clean)
	}
}
