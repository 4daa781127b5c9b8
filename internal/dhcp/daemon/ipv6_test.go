package daemon_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

// newLAN6 is a lan whose server has an IPv6 address too.
func newLAN6(t *testing.T) lan {
	t.Helper()
	l := newLAN(t)
	// Whoever does not forward says of itself that it is no router, when neighbours make sure of it after some seconds;
	// then they delete their routes by it (RFC 4861, 7.2.5).
	nstest.RunIn(t, l.server, "sh", "-ec", `ip link set eth0 down; echo 0 > /proc/sys/net/ipv6/conf/eth0/accept_dad
		echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
		echo 1 > /proc/sys/net/ipv6/conf/eth0/addr_gen_mode
		ip link set eth0 up; ip addr add fe80::9/64 dev eth0 nodad; ip addr add fd00:9::1/64 dev eth0 nodad`)
	return l
}

func over(plugin, ipam string) string {
	return fmt.Sprintf(`"type":%q,"bridge":"cni0","ipam":{"type":"dhcp",%s}`, plugin, ipam)
}

const (
	range4 = "--dhcp-range=10.9.0.10,10.9.0.50,255.255.255.0,2m"
	range6 = "--dhcp-range=fd00:9::100,fd00:9::1ff,64,2m"
)

// kea6 serves a pool for as long as is said, in seconds.
func (l lan) kea6(t *testing.T, pool string, valid, t1, t2 int, more string) *process {
	t.Helper()
	dir := t.TempDir()
	conf := fmt.Sprintf(`{"Dhcp6":{"interfaces-config":{"interfaces":["eth0"]},"lease-database":{"type":"memfile","persist":false},
		"server-id":{"type":"LLT","htype":1,"time":1,"identifier":"0A0B0C0D0E%s","persist":false},
		"valid-lifetime":%d,"preferred-lifetime":%d,"renew-timer":%d,"rebind-timer":%d,
		"subnet6":[{"id":1,"subnet":"fd00:9::/64","interface":"eth0","pools":[{"pool":%q}]%s}],
		"loggers":[{"name":"kea-dhcp6","severity":"INFO","output_options":[{"output":"stdout"}]},
		{"name":"kea-dhcp6.packets","severity":"DEBUG","debuglevel":50,"output_options":[{"output":"stdout"}]}]}}`,
		filepath.Base(dir)[1:], valid, valid, t1, t2, pool, more)
	file := filepath.Join(dir, "kea.json")
	if err := os.WriteFile(file, []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	nstest.NeedProgram(t, "kea-dhcp6")
	cmd := exec.Command("nsenter", "--net="+l.server, "kea-dhcp6", "-c", file)
	cmd.Env = append(os.Environ(), "KEA_PIDFILE_DIR="+dir, "KEA_LOCKFILE_DIR="+dir)
	p := start(t, cmd)
	p.says(t, "DHCP6_STARTED", 1)
	return p
}

func (a *attachment) show(t *testing.T, what ...string) string {
	t.Helper()
	return nstest.RunIn(t, a.netns, "ip", what...)
}

// addresses are those of the result, one family's.
func (a *attachment) addresses(v6 bool) (ips []spec.IP) {
	for _, ip := range a.result.IPs {
		if ip.Address.Addr().Is6() == v6 {
			ips = append(ips, ip)
		}
	}
	return ips
}

// Both families at once, of one server, over a bridge and on a macvlan: the gateway of IPv6 is the router.
// clause: I1 I4 P9 P12
func TestDualStack(t *testing.T) {
	l := newLAN6(t)
	nstest.Run(t, "sh", "-ec",
		"ip link add up0 type veth peer name up1; ip link set up1 master cni0 up; ip link set up0 up")
	t.Cleanup(func() { exec.Command("ip", "link", "del", "up0").Run() })
	srv := l.dnsmasq(t, range4, range6, "--enable-ra", "--dhcp-option=option:router,10.9.0.1",
		"--dhcp-option=option6:dns-server,[fd00:9::53]", "--dhcp-option=option6:domain-search,lan.example")
	startDaemon(t)
	for _, kind := range []string{"bridge", "macvlan", "ipvlan"} {
		t.Run(kind, func(t *testing.T) {
			if kind == "ipvlan" {
				nstest.Need(t, kind)
			}
			a := newAttachment(t, kind, fmt.Sprintf(`"type":%q,"bridge":"cni0","master":"up0","ipam":{"type":"dhcp","ipv6":"dhcpv6"}`, kind))
			dual(t, a, 2)
			given := strings.Count(srv.text(), "DHCPRELEASE")
			a.must(t, "DEL")
			srv.says(t, "DHCPRELEASE", given+2)
			if list := entries(t); len(list) != 0 || len(files(t)) != 0 {
				t.Errorf("after DEL the daemon keeps %+v in %q", list, files(t))
			}
		})
	}
	// Two keys that contradict each other: nothing is left of that.
	a := newAttachment(t, "off", `"ipv6":"off",`+over("bridge", `"ipv6":"dhcpv6"`))
	if err := a.call(t, "ADD"); code(err) != spec.CodeConfig || !strings.Contains(err.Error(), `ipv6: "off": ipam gave`) {
		t.Errorf("ADD says %v", err)
	}
	if out := a.show(t, "-o", "link"); strings.Contains(out, "eth0") || len(files(t)) != 0 {
		t.Errorf("a failed ADD left %s and %q", out, files(t))
	}
}

// dual holds an attachment with an address of each family, given by servers, and with that many routes in its result.
func dual(t *testing.T, a *attachment, routes int) {
	t.Helper()
	a.must(t, "ADD")
	four, six := a.addresses(false), a.addresses(true)
	if len(four) != 1 || len(six) != 1 || six[0].Address.Bits() != 128 || !six[0].Gateway.IsLinkLocalUnicast() ||
		len(a.result.Routes) != routes {
		t.Fatalf("result %s", a.raw)
	}
	own := a.program == "" // the reference's bridge keeps DNS to itself, and does not name an address that is gone
	if own && !strings.Contains(string(a.raw), "fd00:9::53") || own && !strings.Contains(string(a.raw), "lan.example") {
		t.Errorf("result %s", a.raw)
	}
	a.must(t, "CHECK")
	if list := entries(t); len(list) != 2 || len(files(t)) != 2 || list[0].Protocol != "dhcpv4" ||
		list[1].Protocol != "dhcpv6" {
		t.Errorf("the daemon keeps %+v in %q", list, files(t))
	}
	// The network is one to go through, in both families.
	nstest.RunIn(t, a.netns, "sh", "-ec", `timeout 5 bash -c ': < /dev/tcp/10.9.0.1/1' 2>&1 | grep refused; timeout 5 bash -c ': < /dev/tcp/fd00:9::1/1' 2>&1 | grep refused`)
	if out := a.show(t, "-6", "route"); !strings.Contains(out,
		"default via "+six[0].Gateway.String()+" dev eth0 proto ra") ||
		!strings.Contains(out, "fd00:9::/64 dev eth0 proto kernel") {
		t.Errorf("the routes are %s", out)
	}
	a.show(t, "-6", "addr", "del", six[0].Address.String(), "dev", "eth0")
	if err := a.call(t, "CHECK"); err == nil || own && !strings.Contains(err.Error(), six[0].Address.Addr().String()) {
		t.Errorf("CHECK says %v", err)
	}
}

// The kernel keeps what a router gives: the addresses have their ends, and CHECK knows when one is gone.
func TestSLAAC(t *testing.T) {
	l := newLAN6(t)
	l.dnsmasq(t, range4, "--dhcp-range=fd00:9::,slaac,64,1h", "--enable-ra",
		"--dhcp-option=option6:dns-server,[fd00:9::53]")
	d := startDaemon(t)
	a := newAttachment(t, "c1", over("bridge", `"ipv6":"slaac"`))
	a.must(t, "ADD")
	six := a.addresses(true)
	if len(a.addresses(false)) != 1 || len(six) != 1 || six[0].Address.Bits() != 64 ||
		!six[0].Gateway.IsLinkLocalUnicast() || !strings.Contains(string(a.raw), "fd00:9::53") {
		t.Fatalf("result %s", a.raw)
	}
	kept := func() {
		t.Helper()
		out := a.show(t, "-6", "addr", "show", "dev", "eth0", "scope", "global")
		if strings.Count(out, "inet6") != 1 || !strings.Contains(out, six[0].Address.String()+" scope global dynamic") ||
			strings.Contains(out, "forever") {
			t.Errorf("the address is not the kernel's to keep: %s", out)
		}
		if out := a.show(t, "-6", "route", "show", "default"); !strings.Contains(out, "proto ra") ||
			!strings.Contains(out, "expires") || strings.Count(out, "via") != 1 {
			t.Errorf("the default route is not the kernel's to keep: %s", out)
		}
	}
	kept()
	a.must(t, "CHECK")
	d.end(syscall.SIGKILL)
	startDaemon(t)
	a.must(t, "CHECK")
	kept()
	a.show(t, "addr", "del", six[0].Address.String(), "dev", "eth0")
	if err := a.call(t, "CHECK"); err == nil || !strings.Contains(err.Error(), six[0].Address.Addr().String()) {
		t.Errorf("CHECK says %v", err)
	}
	a.must(t, "DEL")
	if list := entries(t); len(list) != 0 {
		t.Errorf("after DEL the daemon keeps %+v", list)
	}
}

// A lease of seconds is renewed; when its server dies it is over in time and the address goes; when a server comes
// there is a new one, which goes on the link.
func TestIPv6Alone(t *testing.T) {
	l := newLAN6(t)
	srv := l.kea6(t, "fd00:9::100-fd00:9::1ff", 10, 1, 4, "")
	router := l.dnsmasq(t, "--dhcp-range=fd00:9::,ra-only", "--enable-ra")
	d := startDaemon(t, "-timeout", "2s")
	a := newAttachment(t, "c1", over("bridge", `"ipv4":"off","ipv6":"dhcpv6"`))
	a.must(t, "STATUS")
	a.must(t, "ADD")
	if len(a.addresses(false)) != 0 || len(a.addresses(true)) != 1 || a.result.IPs[0].Gateway.String() != "fe80::9" {
		t.Fatalf("result %s", a.raw)
	}
	router.end(syscall.SIGKILL)          // its word holds for half an hour
	srv.says(t, "DHCP6_LEASE_RENEW", 11) // beyond the first lease's end
	a.must(t, "CHECK")
	d.end(syscall.SIGKILL)
	d = startDaemon(t, "-timeout", "2s")
	srv.says(t, "CONFIRM", 1)
	a.must(t, "CHECK")

	srv.end(syscall.SIGKILL)
	d.says(t, "a lease is over", 1)
	if out := a.show(t, "-6", "addr", "show", "dev", "eth0", "scope", "global"); strings.Contains(out, "inet6") {
		t.Errorf("the address is still there: %s", out)
	}
	if err := a.call(t, "CHECK"); err == nil || !strings.Contains(err.Error(), "is over") {
		t.Errorf("CHECK says %v", err)
	}
	srv = l.kea6(t, "fd00:9::800-fd00:9::8ff", 3600, 1000, 2000, "")
	d.says(t, "a lease has changed", 1)
	now := entries(t)[0].Lease.Addresses[0].Prefix
	if out := a.show(t, "-6", "addr", "show", "dev",
		"eth0"); !netip.MustParsePrefix("fd00:9::800/120").Contains(now.Addr()) || !strings.Contains(out, now.String()) {
		t.Errorf("the new lease is of %v, and there is %s", now, out)
	}
	if out := a.show(t, "-6", "route", "show", "default"); !strings.Contains(out, "via fe80::9 dev eth0 proto ra") {
		t.Errorf("the router's route is not what a server of addresses ends: %s", out)
	}
	if err := a.call(t, "CHECK"); err == nil ||
		!strings.Contains(err.Error(), "address is "+now.String()+" now") {
		t.Errorf("CHECK says %v", err)
	}
	a.must(t, "DEL")
	srv.says(t, "DHCP6_RELEASE_NA", 1)
}

// A link that comes back is asked about, and what another network would not give is exchanged.
func TestDownAndUp6(t *testing.T) {
	l := newLAN6(t)
	srv := l.kea6(t, "fd00:9::100-fd00:9::1ff", 3600, 1000, 2000, "")
	d := startDaemon(t)
	a := newAttachment(t, "c1", over("bridge", `"ipv4":"off","ipv6":"dhcpv6"`))
	a.must(t, "ADD")
	a.show(t, "link", "set", "eth0", "down")
	a.show(t, "link", "set", "eth0", "up")
	srv.says(t, "CONFIRM (type 4)", 1)
	srv.says(t, "REPLY (type 7)", 2)
	a.must(t, "CHECK")

	srv.end(syscall.SIGKILL)
	l.dnsmasq(t, "--dhcp-range=fd00:a::100,fd00:a::1ff,64,2m", "--dhcp-authoritative", "--enable-ra")
	nstest.RunIn(t, l.server, "ip", "addr", "add", "fd00:a::1/64", "dev", "eth0", "nodad")
	a.show(t, "link", "set", "eth0", "down")
	a.show(t, "link", "set", "eth0", "up")
	d.says(t, "a lease has changed", 1)
	if out := a.show(t, "-6", "addr", "show", "dev", "eth0"); strings.Contains(out, "fd00:9:") ||
		!strings.Contains(out, "fd00:a::1") {
		t.Errorf("there is %s", out)
	}
	if out := a.show(t, "-6", "route", "show", "default"); !strings.Contains(out, "via fe80::9") {
		t.Errorf("the default route is %s", out)
	}
	a.show(t, "link", "set", "eth0", "down") // nothing can be given back, and DEL does not wait for that
	a.must(t, "DEL")
	d.says(t, `reason="link eth0 is down"`, 1)
}

// Who asks for a prefix is told of it by the daemon, and gives it back.
func TestPrefixDelegation(t *testing.T) {
	l := newLAN6(t)
	srv := l.kea6(t, "fd00:9::100-fd00:9::100", 3600, 1000, 2000, `,"pd-pools":[{"prefix":"fd00:100::","prefix-len":48,"delegated-len":56}]`)
	startDaemon(t)
	a := newAttachment(t, "c1", over("bridge", `"ipv4":"off","ipv6":"dhcpv6","prefixDelegation":56`))
	a.must(t, "ADD")
	if list := entries(t); len(list) != 1 || len(list[0].Lease.Delegated) != 1 ||
		list[0].Lease.Delegated[0].Prefix.Bits() != 56 {
		t.Errorf("the daemon keeps %+v", list)
	}
	b := newAttachment(t, "c2", over("bridge", `"ipv4":"off","ipv6":"dhcpv6"`))
	if err := b.call(t, "ADD"); code(err) != spec.CodeTryAgain || !strings.Contains(err.Error(), "NoAddrsAvail") {
		t.Errorf("ADD from an empty pool says %v", err)
	}
	if out := nstest.RunIn(t, b.netns, "ip", "-o", "link"); strings.Contains(out, "eth0") || len(files(t)) != 1 {
		t.Errorf("a failed ADD left %s and %q", out, files(t))
	}
	a.must(t, "DEL")
	srv.says(t, "DHCP6_RELEASE_PD", 1)
	b.must(t, "ADD")
	b.must(t, "DEL")
}

// What cannot be is said before anybody is asked.
func TestFamilies(t *testing.T) {
	startDaemon(t)
	for ipam, words := range map[string]string{
		`"ipv6":"slac"`:                          `ipam.ipv6: "slac": want`,
		`"ipv4":"no"`:                            `ipam.ipv4: "no": want`,
		`"ipv4":"off"`:                           `both are off`,
		`"ipv6":"slaac","prefixDelegation":64`:   `ipam.prefixDelegation`,
		`"ipv6":"dhcpv6","prefixDelegation":129`: `ipam.prefixDelegation: 129`,
		`"ipv6":"dhcpv6","duid":"xyz"`:           `ipam.duid: "xyz"`,
		`"ipv6":"dhcpv6","provide6":[{"option":"1","value":"x"}]`:                `ipam.provide6[0].option: "1"`,
		`"ipv6":"dhcpv6","provide6":[{"option":"16","hex":"0"}]`:                 `ipam.provide6[0].hex`,
		`"ipv6":"dhcpv6","provide6":[{"option":"16","hex":"00","value":"x"}]`:    `set one of them`,
		`"ipv6":"dhcpv6","hostname":"` + strings.Repeat("x", 256) + `"`:          `ipam.hostname`,
		`"ipv4":"off","ipv6":"dhcpv6","provide6":[{"option":"four-and-twenty"}]`: `want a number`,
	} {
		a := newAttachment(t, "c1", over("bridge", ipam))
		if err := a.call(t, "ADD"); code(err) != spec.CodeConfig || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v", ipam, err)
		}
		a.must(t, "DEL")
	}
}

// Where nobody gives IPv6 addresses ADD ends in time, says what routers say, and gives back what IPv4's server gave.
func TestNobodyGivesIPv6(t *testing.T) {
	l := newLAN6(t)
	srv := l.dnsmasq(t, range4)
	startDaemon(t, "-resendtimeout", "8s")
	for i, ipv6 := range []string{"dhcpv6", "slaac"} {
		a := newAttachment(t, "c1", over("bridge", `"ipv6":"`+ipv6+`"`))
		if err := a.call(t, "ADD"); code(err) != spec.CodeTryAgain || !strings.Contains(err.Error(), "no router") {
			t.Errorf("%s: %v", ipv6, err)
		}
		srv.says(t, "DHCPRELEASE", i+1)
		if len(entries(t)) != 0 || len(files(t)) != 0 {
			t.Errorf("the daemon keeps %+v in %q", entries(t), files(t))
		}
	}
}

func code(err error) spec.Code {
	var e *spec.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

// Who has an address, and answers none but the kernel's own question, makes ADD fail; the server is told, so that the
// next one gets another address.
func TestTakenAddress(t *testing.T) {
	l := newLAN6(t)
	srv := l.kea6(t, "fd00:9::100-fd00:9::101", 3600, 1000, 2000, "")
	startDaemon(t)
	squatter := newAttachment(t, "squatter", `"type":"bridge","bridge":"cni0","ipam":{"type":"static","addresses":[{"address":"fd00:9::100/64"}]}`)
	squatter.must(t, "ADD")
	nstest.RunIn(t, squatter.netns, "nft",
		"add table ip6 t; add chain ip6 t in { type filter hook input priority 0; }; add rule ip6 t in ip6 saddr fe80::/10 icmpv6 type nd-neighbor-solicit drop")
	a := newAttachment(t, "c1", `"enabledad":true,`+over("bridge", `"ipv4":"off","ipv6":"dhcpv6"`))
	if err := a.call(t, "ADD"); err == nil || !strings.Contains(err.Error(), "fd00:9::100") ||
		!strings.Contains(err.Error(), "has it") {
		t.Errorf("ADD says %v", err)
	}
	srv.says(t, "DHCP6_DECLINE_LEASE", 1)
	a.must(t, "ADD")
	if a.ip(t) != "fd00:9::101/128" {
		t.Errorf("the address is %s", a.ip(t))
	}
	a.must(t, "CHECK")
	a.must(t, "DEL")
	squatter.must(t, "DEL")
}

// The reference's plugins get IPv6 addresses of this daemon: what a configuration says goes through them.
func TestReferencePlugin6(t *testing.T) {
	l := newLAN6(t)
	l.dnsmasq(t, range4, range6, "--enable-ra")
	startDaemon(t)
	a := newAttachment(t, "c1", over("bridge", `"ipv6":"dhcpv6"`))
	a.program, a.version = reference+"bridge", "1.0.0"
	dual(t, a, 1)
	a.must(t, "DEL")
	if len(entries(t)) != 0 || len(files(t)) != 0 {
		t.Errorf("the daemon keeps %+v in %q", entries(t), files(t))
	}
	// It takes no address that is there already.
	b := newAttachment(t, "c2", over("bridge", `"ipv6":"slaac"`))
	b.program, b.version = reference+"bridge", "1.0.0"
	if err := b.call(t, "ADD"); err == nil || !strings.Contains(err.Error(), "has already added the address") {
		t.Errorf("ADD says %v", err)
	}
	b.must(t, "DEL")
}

// Many at once get addresses of their own, and at the end there is nothing left of them.
func TestManyDualStack(t *testing.T) {
	l := newLAN6(t)
	srv := l.dnsmasq(t, range4, range6, "--enable-ra")
	startDaemon(t)
	const many = 6
	var group sync.WaitGroup
	all := make([]*attachment, many)
	for i := range all {
		all[i] = newAttachment(t, fmt.Sprint("c", i), over("bridge", `"ipv6":"dhcpv6"`))
		group.Go(func() {
			if err := all[i].call(t, "ADD"); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if t.Failed() {
		return
	}
	seen := map[netip.Addr]bool{}
	for _, a := range all {
		for _, ip := range a.result.IPs {
			seen[ip.Address.Addr()] = true
		}
	}
	if len(seen) != 2*many || len(entries(t)) != 2*many {
		t.Errorf("%d containers have %v", many, seen)
	}
	for _, a := range all {
		group.Go(func() {
			if err := errors.Join(a.call(t, "CHECK"), a.call(t, "DEL")); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	srv.says(t, "DHCPRELEASE", 2*many)
	if len(entries(t)) != 0 || len(files(t)) != 0 {
		t.Errorf("the daemon keeps %+v in %q", entries(t), files(t))
	}
}
