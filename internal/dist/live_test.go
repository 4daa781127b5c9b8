package dist

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"golang.org/x/sys/unix"
)

// In place of a runtime: it notes what it finds when it starts, and whether the DHCP daemon answers when it stops.
const standIn = `[Unit]
Description=%n, a stand-in
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'ls /var/lib/cni/results /var/lib/cni/networks/lan >/var/log/%n.start 2>&1 || true'
ExecStart=/bin/sh -c 'systemctl is-active fairlead-gc cni-dhcp.socket >>/var/log/%n.start || true'
ExecStop=/bin/sh -c '/usr/bin/fairlead check leased c2 >/var/log/%n.stop 2>&1; echo $? >>/var/log/%n.stop'
[Install]
WantedBy=multi-user.target
`

// Outside there is a LAN with a DHCP server; the host's address there is 10.9.0.254.
const lanOutside = `
ip netns add wire
ip link add uplink type veth peer name eth0 netns wire
ip addr add 10.9.0.254/24 dev uplink
ip link set uplink up
ip -n wire addr add 10.9.0.1/24 dev eth0
ip -n wire link set eth0 up
systemd-run -q --unit=server -p NetworkNamespacePath=/run/netns/wire dnsmasq \
	--keep-in-foreground --conf-file=/dev/null --user=root --pid-file= --port=0 --interface=eth0 --bind-interfaces --no-ping --leasefile-ro \
	--dhcp-range=10.9.0.10,10.9.0.50,255.255.255.0,10m
ip netns add c1
ip netns add c2
export CAP_ARGS='{"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}], "aliases": ["web"]}'
fairlead add lan c1
fairlead add leased c2
systemd-run -q --unit=web -p NetworkNamespacePath=/run/netns/c1 busybox httpd -f -p 80 -h /etc
`

// What works while the containers are attached: the port that is published, the way out, the lease, the name.
const (
	byPort  = "ip netns exec wire busybox nc -w 2 10.9.0.254 8080 </dev/null"
	byLease = "fairlead dhcp ls | grep '10[.]9[.]0[.]' && fairlead check leased c2"
	byOut   = "ip netns exec c1 ping -c 1 -W 1 10.9.0.1"
	byName  = "ip netns exec c1 busybox nslookup web 10.1.0.1 | grep '10[.]1[.]0[.]2'"
)

// The units under systemd: enabled as the documents say, with nftables, then firewalld, through three boots.
func TestUnitsLive(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	nstest.NeedProgram(t, "nft", "firewalld", "dnsmasq", "ip", "dbus-daemon", "busybox", "ping")
	bin, tree := build(t), t.TempDir()
	run(t, "make", "--no-print-directory", "-C", "../..", "BIN="+bin, "DESTDIR="+tree, "install")
	paths, err := filepath.Glob("../../packaging/systemd/*.*")
	if err != nil {
		t.Fatal(err)
	}
	var ours, daemons []string
	for _, path := range paths {
		if isOfFleet(path) {
			continue // is in a package of its own, and there is no cluster here
		}
		ours = append(ours, strings.Replace(filepath.Base(path), "@.", "@nftables.", 1))
		if u := unit(t, path); slices.Equal(u["Service.Restart"], []string{"always"}) {
			daemons = append(daemons, filepath.Base(path))
		}
	}
	sweep := unit(t, "../../packaging/systemd/fairlead-gc.service")
	runtimes := slices.DeleteFunc(strings.Fields(strings.Join(sweep["Unit.Before"], " ")),
		func(name string) bool { return strings.HasPrefix(name, "fairlead-") })
	for _, name := range runtimes {
		write(t, filepath.Join(tree, "usr/lib/systemd/system", name), standIn)
	}
	for path, text := range map[string]string{
		"etc/machine-id": strings.Repeat("fa1e", 8) + "\n",
		"etc/fstab":      "",
		"usr/lib/systemd/system/nftables.service.d/note.conf": "[Service]\nExecStop=/bin/sh -c '" +
			"systemctl is-active fairlead-repair@nftables >/var/log/nftables.stop'\n",
		"etc/cni/net.d/lan.conflist": `{"cniVersion": "1.0.0", "name": "lan", "plugins": [
			{"type": "bridge", "bridge": "lan0", "isDefaultGateway": true, "ipMasq": true,
			 "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}},
			{"type": "portmap", "capabilities": {"portMappings": true}}, {"type": "firewall"},
			{"type": "alias", "capabilities": {"aliases": true}}]}`,
		"etc/cni/net.d/leased.conflist": `{"cniVersion": "1.0.0", "name": "leased", "plugins": [
			{"type": "macvlan", "master": "uplink", "ipam": {"type": "dhcp"}}]}`,
	} {
		write(t, filepath.Join(tree, path), text)
	}
	h.put(tree)
	all := strings.Join(ours, " ")
	pids := func() string { return h.sh("systemctl show -P MainPID " + strings.Join(daemons, " ")) }

	h.boot()
	h.sh("systemctl enable --now nftables " + all)
	h.sh("systemctl enable " + strings.Join(runtimes, " ") + " && systemctl start " + strings.Join(runtimes, " "))
	h.sh(lanOutside)
	works := func(t *testing.T, scripts ...string) {
		t.Helper()
		h.on(t).sh("systemctl is-active " + all)
		for _, script := range scripts {
			h.on(t).until(script)
		}
	}
	works(t, byPort, byOut, byLease, byName)
	t.Run("confined", func(t *testing.T) {
		h := h.on(t)
		bits := map[string]int{"NET_BIND_SERVICE": unix.CAP_NET_BIND_SERVICE, "NET_BROADCAST": unix.CAP_NET_BROADCAST,
			"NET_ADMIN": unix.CAP_NET_ADMIN, "NET_RAW": unix.CAP_NET_RAW, "SYS_PTRACE": unix.CAP_SYS_PTRACE,
			"SYS_ADMIN": unix.CAP_SYS_ADMIN}
		for _, name := range daemons {
			mask := 0
			for c := range strings.FieldsSeq(unit(t, "../../packaging/systemd/"+name)["Service.CapabilityBoundingSet"][0]) {
				mask |= 1 << bits[strings.TrimPrefix(c, "CAP_")]
			}
			process := "/proc/" + h.sh("systemctl show -P MainPID "+name)
			for _, want := range []string{fmt.Sprintf("CapEff:\t%016x", mask), "NoNewPrivs:\t1", "Seccomp:\t2"} {
				if got := h.sh("cat " + process + "/status"); !strings.Contains(got, want) {
					t.Errorf("%s: want %q:\n%s", name, want, got)
				}
			}
			h.sh("grep -E '^[0-9]+ [0-9]+ [0-9:]+ / / ro' " + process + "/mountinfo")
		}
	})
	t.Run("killed", func(t *testing.T) {
		h := h.on(t)
		before := strings.Fields(pids())
		for i, name := range daemons {
			h.sh("kill -9 " + before[i])
			h.until("! systemctl show -P MainPID " + name + " | grep -wE '0|" + before[i] + "' && systemctl is-active " + name)
		}
		works(t, byPort, byOut, byLease, byName)
	})
	t.Run("reloaded manager", func(t *testing.T) {
		h := h.on(t)
		before := pids()
		h.sh("systemctl daemon-reload; systemctl daemon-reexec")
		works(t, byPort, byOut, byLease, byName)
		if now := pids(); now != before {
			t.Errorf("daemons were %s, are %s", before, now)
		}
	})
	t.Run("restarted and stopped", func(t *testing.T) {
		h := h.on(t)
		for _, name := range ours {
			h.sh("systemctl restart " + name)
			works(t)
			h.sh("systemctl stop " + name + "; ! systemctl is-active " + name + "; systemctl start " + all)
			works(t, byPort, byOut, byLease, byName)
		}
	})
	t.Run("by the socket", func(t *testing.T) {
		h := h.on(t)
		h.sh("systemctl stop cni-dhcp.service fairlead-dns.service")
		h.sh(byLease)
		h.sh("ip netns add c3; fairlead add lan c3; fairlead del lan c3; ip netns del c3")
		works(t, byPort, byOut, byLease, byName)
	})
	t.Run("flushed, watched", func(t *testing.T) {
		h := h.on(t)
		h.sh("nft flush ruleset")
		works(t, byPort)
	})
	h.sh("systemctl disable --now fairlead-repair-watch")
	all = strings.ReplaceAll(all, "fairlead-repair-watch.service", "")
	t.Run("nftables", func(t *testing.T) {
		h := h.on(t)
		for _, verb := range []string{"reload", "restart", "reload-or-restart", "try-restart"} {
			h.sh("systemctl " + verb + " nftables")
			works(t, byPort, byOut, byLease, byName)
		}
		h.sh("systemctl stop nftables; ! systemctl is-active fairlead-repair@nftables; systemctl start nftables")
		works(t, byPort)
	})
	t.Run("in the container", func(t *testing.T) {
		h := h.on(t)
		h.sh(`ip -n c1 addr flush dev eth0
			systemctl reload fairlead-repair@nftables
			ip -n c1 addr add 10.1.0.2/24 dev eth0
			ip -n c1 route add default via 10.1.0.1`)
		if said := h.sh("journalctl -b -u fairlead-repair@nftables -n 20 -o cat"); !strings.Contains(said, "10.1.0.2") {
			t.Errorf("the repair does not see what lacks there: %s", said)
		}
		works(t, byPort)
	})
	h.shutdown()

	note := func(file string) string {
		b, err := os.ReadFile(h.path("var/log/" + file))
		if err != nil {
			t.Error(err)
		}
		os.Remove(h.path("var/log/" + file))
		return strings.TrimSpace(string(b))
	}
	for _, name := range runtimes {
		note(name + ".start")
		if got := note(name + ".stop"); got != "0" {
			t.Errorf("%s stops, and the daemon is not there any more: %s", name, got)
		}
	}
	if got := note("nftables.stop"); got != "inactive" {
		t.Errorf("nftables stops, and the repair is %s", got)
	}
	// What the containers had is there yet: none was detached.
	for _, dir := range []string{"var/lib/cni/results", "var/lib/cni/networks/lan"} {
		if left, err := os.ReadDir(h.path(dir)); err != nil || len(left) == 0 {
			t.Fatalf("%s: %v %v", dir, left, err)
		}
	}

	h.boot()
	works(t)
	if got := h.sh("fairlead ls; fairlead dhcp ls"); got != "nothing is attached\nno lease is kept" {
		t.Errorf("after a boot: %s", got)
	}
	const swept = "systemctl show -P InvocationID fairlead-gc"
	once := h.sh(swept)
	for _, name := range runtimes {
		if got := note(name + ".start"); !strings.HasSuffix(got, "/var/lib/cni/results:\nactive\nactive") {
			t.Errorf("%s starts, and finds %q", name, got)
		}
		h.sh("systemctl restart " + name)
	}
	if again := h.sh(swept); again != once {
		t.Errorf("the sweep ran again, with a runtime's restart: %s, %s", once, again)
	}
	h.sh(lanOutside)
	works(t, byPort, byOut, byLease, byName)
	t.Run("from nftables to firewalld", func(t *testing.T) {
		h := h.on(t)
		h.sh("systemctl enable fairlead-repair@firewalld; systemctl disable nftables; systemctl enable --now firewalld")
		h.sh("! systemctl is-active nftables || ! systemctl is-active fairlead-repair@nftables")
		all = strings.ReplaceAll(all, "@nftables", "@firewalld")
		h.until("systemctl is-active " + all)
		works(t, byPort, byOut, byLease, byName)
	})
	for _, verb := range []string{"reload", "restart"} {
		t.Run("firewalld "+verb, func(t *testing.T) {
			h.on(t).sh("systemctl " + verb + " firewalld; firewall-cmd --state")
			works(t, byPort, byOut, byLease, byName)
		})
	}
	h.sh("systemctl enable --now fairlead-repair-watch")
	t.Run("firewall-cmd reload", func(t *testing.T) {
		h.on(t).sh("firewall-cmd --reload")
		works(t, byPort, byOut, byLease, byName)
	})
	h.shutdown()
	h.boot()
	works(t)
	h.sh("systemctl is-active firewalld")
	h.sh(lanOutside)
	works(t, byPort, byOut, byLease, byName)
	h.shutdown()
}
