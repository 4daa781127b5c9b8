package tune

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/kernel/procsys"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource/filter/spoof"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/resource/link/linktest"
	"github.com/fairlead-cni/fairlead/resource/sysctl"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// tuningWorld has eth0 in the container.
func tuningWorld(t *testing.T) *kernel.World {
	w := contract.NewWorld(t)
	contract.Must(t, w, link.Bridge{Name: "cni0"}, linktest.Veth(contract.Owner, "cni0"))
	return w
}

func netSysctls(t testing.TB, pairs ...string) (list []sysctl.NetSysctl) {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		s, err := sysctl.ParseNetSysctl("sysctl", pairs[i], pairs[i+1], "eth0")
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, s)
	}
	return list
}

// tunedState is all that a Tuning could touch.
func tunedState(w *kernel.World, dir string) func(t testing.TB) string {
	return func(t testing.TB) string {
		return contract.State(t, w) + contract.Container(t, w, "ip -o link show eth0") +
			nstest.RunIn(t, w.Container.Path, "sh", "-c",
				"grep -r . /proc/sys/net 2>/dev/null | grep -v 'count:\\|random\\|state' || true") +
			nstest.Run(t, "find", dir, w.Store.Dir, "-type", "f")
	}
}

// clause: P11 P15
func TestTuning(t *testing.T) {
	w, dir := tuningWorld(t), t.TempDir()
	r := Tuning{
		Owner: contract.Owner, Link: "eth0", MAC: "02:00:5E:00:00:0A", MTU: 1300, Promisc: true, AllMulti: new(true), TxQLen: new(7), DataDir: dir,
		Sysctls: netSysctls(t, "net.core.somaxconn", "501", "net.ipv4.ip_local_port_range", "2000 3000",
			"net.ipv4.ip_local_reserved_ports", "8081,8080", "net.ipv6.conf.IFNAME.hop_limit", "9"),
	}
	contract.Terms{State: tunedState(w, dir)}.Test(t, w, r,
		contract.Break("mac", contract.In(w, "ip link set eth0 address 02:00:00:00:00:01"),
			"address is 02:00:00:00:00:01, want 02:00:5e:00:00:0a"),
		contract.Break("mtu", contract.In(w, "ip link set eth0 mtu 1400"), "mtu is 1400, want 1300"),
		contract.Break("promisc", contract.In(w, "ip link set eth0 promisc off"), "promisc is off, want on"),
		contract.Break("allmulti", contract.In(w, "ip link set eth0 allmulticast off"), "allmulticast is off, want on"),
		contract.Break("txqlen", contract.In(w, "ip link set eth0 txqueuelen 8"), "txqueuelen is 8, want 7"),
		contract.Break("a sysctl", contract.In(w, "sysctl -qw net.core.somaxconn=77"), `net/core/somaxconn is "77", want "501"`),
		contract.Break("one of several fields", func(t *testing.T) {
			nstest.RunIn(t, w.Container.Path, "sysctl", "-qw", "net.ipv4.ip_local_port_range=2000 3001")
		}, `net/ipv4/ip_local_port_range`),
		contract.Break("the link's own", contract.In(w, "sysctl -qw net.ipv6.conf.eth0.hop_limit=10"), `net/ipv6/conf/eth0/hop_limit`),
	)
	off := Tuning{Owner: contract.Owner, Link: "eth0", AllMulti: new(false), TxQLen: new(0), DataDir: dir}
	contract.Container(t, w, "ip link set eth0 allmulticast on promisc on")
	contract.Must(t, w, off)
	if out := contract.Container(t, w, "ip link show eth0"); strings.Contains(out, "ALLMULTI") ||
		!strings.Contains(out, "PROMISC") || strings.Contains(out, "qlen") {
		t.Errorf("tuned: %s", out)
	}
}

// Two in a chain share an owner: each remembers, the oldest values are restored, once, and CHECK of the first
// bears with what the second set. The reference plugin finds the oldest in its file.
//
// clause: P16
func TestTuningTwice(t *testing.T) {
	w, dir := tuningWorld(t), t.TempDir()
	state := tunedState(w, dir)
	before := state(t)
	old, _ := rtnl.LinkByName(w.Container, "eth0")
	one := Tuning{Owner: contract.Owner, Link: "eth0", MTU: 1300, TxQLen: new(5), DataDir: dir,
		Sysctls: netSysctls(t, "net.core.somaxconn", "501")}
	two := Tuning{Owner: contract.Owner, Link: "eth0", MTU: 1350, MAC: "02:00:00:00:00:07", TxQLen: new(6), DataDir: dir,
		Sysctls: netSysctls(t, "net/core/somaxconn", "502", "net.ipv4.ip_default_ttl", "9")}
	contract.Must(t, w, one, two)
	for _, r := range []Tuning{one, two} {
		if err := r.Verify(t.Context(), w); err != nil {
			t.Errorf("%v: %v", r, err)
		}
	}
	file := filepath.Join(dir, "c1_eth0.json")
	text, err := os.ReadFile(file)
	if want := fmt.Sprintf("{\n \"mac\": %q,\n \"mtu\": 1500,\n \"txQLen\": 1000\n}", old.MAC); err != nil ||
		string(text) != want {
		t.Errorf("for the reference: %s, error %v, want %s", text, err, want)
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, error %v", st.Mode(), err)
	}
	// A third is refused half way, and leaves what the two made.
	tuned := state(t)
	bad := two
	bad.MTU, bad.Sysctls = 1400, netSysctls(t, "net.core.somaxconn", "503", "net.ipv4.ip_default_ttl", "many")
	if changed, err := bad.Ensure(t.Context(), w); err == nil || changed || !strings.Contains(err.Error(), "many") {
		t.Errorf("changed %v, error %v", changed, err)
	}
	if after := state(t); after != tuned {
		t.Errorf("a refused one left: %s", contract.Difference(tuned, after))
	}
	bare := Tuning{Owner: contract.Owner, Link: "eth0", DataDir: dir}
	for range 2 {
		if err := bare.Remove(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		if after := state(t); after != before {
			t.Errorf("left: %s", contract.Difference(before, after))
		}
	}
}

// What the kernel refuses is named, and all else is as before.
func TestTuningRefused(t *testing.T) {
	w, dir := tuningWorld(t), t.TempDir()
	state := tunedState(w, dir)
	contract.Container(t, w, "ip link add ifb7 up type ifb")
	before := state(t)
	base := Tuning{Owner: contract.Owner, Link: "eth0", TxQLen: new(3), DataDir: dir,
		Sysctls: netSysctls(t, "net.core.somaxconn", "501")}
	for _, tt := range []struct {
		change func(*Tuning)
		code   spec.Code
		say    string
	}{
		{func(r *Tuning) { r.MTU = 65535; r.MAC = "02:00:00:00:00:01"; r.Link = "ifb7" }, spec.CodeConfig,
			"mac: 02:00:00:00:00:01: the kernel does not take this for ifb7: … Some links take another address only while they are down"},
		{func(r *Tuning) { r.MTU = 65536 }, spec.CodeConfig,
			"mtu: 65536: the kernel does not take this for eth0: … has at most the MTU of that one"},
		{func(r *Tuning) { r.Sysctls = netSysctls(t, "net.core.somaxcon", "501") }, spec.CodeConfig, `sysctl.net.core.somaxcon: no such sysctl, did you mean "net.core.somaxconn"?`},
		{func(r *Tuning) { r.Sysctls = netSysctls(t, "net/ipv4/ip_forwad", "1") }, spec.CodeConfig, `did you mean "net/ipv4/ip_forward"?`},
		{func(r *Tuning) { r.Sysctls = netSysctls(t, "net.core", "1") }, spec.CodeConfig, "sysctl.net.core: is a directory"},
		{func(r *Tuning) { r.Sysctls = netSysctls(t, "net.ipv4.route.flush", "1") }, spec.CodeConfig, "can only be written"},
		{func(r *Tuning) { r.Sysctls = netSysctls(t, "net.ipv4.ip_default_ttl", "256") }, spec.CodeConfig, `sysctl.net.ipv4.ip_default_ttl: "256": the kernel does not take this value (it was "64")`},
		{func(r *Tuning) { r.Sysctls = netSysctls(t, "net."+strings.Repeat("x", 300), "1") }, spec.CodeConfig,
			"no such sysctl"},
		{func(r *Tuning) { r.Sysctls = netSysctls(t, "net.netfilter.nf_hooks_lwtunnel", "1") }, spec.CodeConfig,
			"the whole host's"},
		{func(r *Tuning) { r.Link = "eth9" }, 0, "eth9: link does not exist"},
		{func(r *Tuning) { r.DataDir = "/proc/version" }, spec.CodeIO, "dataDir: "},
	} {
		r := base
		tt.change(&r)
		changed, err := r.Ensure(t.Context(), w)
		say, hint, _ := strings.Cut(tt.say, "… ")
		if err == nil || changed || !strings.Contains(err.Error(), say) || spec.AsError(err, 0).Code != tt.code ||
			!strings.Contains(spec.AsError(err, 0).Hint, hint) {
			t.Errorf("%v: changed %v, error %v, want %q", r, changed, err, tt.say)
		}
		if after := state(t); after != before {
			t.Errorf("%v left: %s", r, contract.Difference(before, after))
		}
	}
}

// TestTuningEscape is advisory 12 (openshift/cluster-network-operator#1347): whatever the key, a sysctl changes
// the container's namespace or nothing. Each way out is first shown to lead out.
//
// clause: K13
func TestTuningEscape(t *testing.T) {
	w := tuningWorld(t)
	for _, key := range []string{
		"net/../kernel/hostname", "net/ipv4/../../kernel/hostname", "net/./../kernel/hostname", "net//../kernel/hostname", "net/core/../../vm/swappiness",
	} {
		// Joined and opened, as one would, it is another file.
		if text, err := os.ReadFile("/proc/sys/" + key); err != nil || len(text) == 0 {
			t.Errorf("%s leads nowhere: %v", key, err)
		}
		if s, err := sysctl.ParseNetSysctl("sysctl", key, "x", "eth0"); err == nil {
			t.Errorf("%s is taken for %s", key, s.Path)
		}
		if _, _, err := procsys.GetNet(w.Container, key); !errors.Is(err, unix.EXDEV) {
			t.Errorf("%s opened: %v", key, err)
		}
		if f, err := procsys.OpenNet(w.Container, key); !errors.Is(err, unix.EXDEV) {
			t.Errorf("%s opened to be written: %v, %v", key, f, err)
		}
	}
	for _, key := range []string{
		"", "net", "net.", "net/", ".net.core.somaxconn", "/net/core/somaxconn", "/proc/sys/net/core/somaxconn", "net..core", "net.core.//.x", "kernel.hostname",
		"kernel/net/x", "net/core/somaxconn\x00", "../net/core/somaxconn", "IFNAME/core/somaxconn", "netx.core", "vm/swappiness",
	} {
		if s, err := sysctl.ParseNetSysctl("sysctl", key, "1", "net"); err == nil && key[:1] != "I" || err == nil &&
			s.Path[:4] != "net/" {
			t.Errorf("%q is taken for %s", key, s.Path)
		}
	}
	for key, want := range map[string]string{
		"net.ipv4.conf.IFNAME.rp_filter": "net/ipv4/conf/eth0.7/rp_filter", "net/ipv4/conf/IFNAME/rp_filter": "net/ipv4/conf/eth0.7/rp_filter",
		"net.ipv4.conf.eth0/7.rp_filter": "net/ipv4/conf/eth0.7/rp_filter", "net.ipv4.conf.eth0.7.rp_filter": "net/ipv4/conf/eth0.7/rp_filter",
		"net/ipv4/conf/eth0.7/rp_filter": "net/ipv4/conf/eth0.7/rp_filter",
	} {
		if s, err := sysctl.ParseNetSysctl("sysctl", key, "1", "eth0.7"); err != nil || s.Path != want {
			t.Errorf("%q is %q, error %v", key, s.Path, err)
		}
	}

	// Something else in the place of a setting is not written to.
	file := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(file, []byte("1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	over := "/proc/sys/net/ipv4/ip_default_ttl"
	if err := w.Container.Do(func() error { return unix.Mount(file, over, "", unix.MS_BIND, "") }); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Container.Do(func() error { return unix.Unmount(over, 0) }) }()
	if err := w.Container.Do(func() error { return os.WriteFile(over, []byte("2\n"), 0) }); err != nil {
		t.Fatal(err) // opened by its name it is the other file
	}
	r := Tuning{Owner: contract.Owner, Link: "eth0", Sysctls: netSysctls(t, "net.ipv4.ip_default_ttl", "3")}
	if _, err := r.Ensure(t.Context(), w); err == nil || !strings.Contains(err.Error(), "leads out of") {
		t.Errorf("through a mount: %v", err)
	}
	if text, _ := os.ReadFile(file); string(text) != "2\n" {
		t.Errorf("the file behind the mount is %q", text)
	}

	// A setting that two namespaces share changes for both; that is noticed and taken back.
	alias, err := kernel.Open(w.Container.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer alias.Close()
	s := netSysctls(t, "net.core.somaxconn", "503")[0]
	before := contract.Sysctl(t, alias, s.Path)
	f, err := procsys.OpenNet(w.Container, s.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Set("502"); err != nil || contract.Sysctl(t, alias, s.Path) != "502" {
		t.Fatalf("unprotected: %v, and it is %s", err, contract.Sysctl(t, alias, s.Path))
	}
	if _, err := s.Set(f, alias, "502"); err == nil || !strings.Contains(err.Error(), "whole host's") ||
		contract.Sysctl(t, alias, s.Path) != "502" {
		t.Errorf("protected: %v, and it is %s, which was %s", err, contract.Sysctl(t, alias, s.Path), before)
	}
}

// TestTuningStaysInside writes every setting that a fresh namespace has: each changes there, and the host's
// does not, and each gets its value back. Written from outside, the host's changes.
func TestTuningStaysInside(t *testing.T) {
	w := tuningWorld(t)
	all, err := procsys.ListNet(w.Container)
	if err != nil {
		t.Fatal(err)
	}
	values := func() map[string]string {
		m := map[string]string{}
		for _, path := range all {
			if v, _, err := procsys.GetNet(w.Host, path); err == nil && !strings.HasSuffix(path, "_count") {
				m[path] = v
			}
		}
		return m
	}
	hosts := values()
	changed, refused := 0, map[string]int{}
	for _, path := range all {
		was, readOnly, err := procsys.GetNet(w.Container, path)
		if err != nil || readOnly != nil {
			refused["cannot be written"]++
			continue
		}
		took := false
		for _, v := range others(was) {
			r := Tuning{Owner: contract.Owner, Link: "eth0", Sysctls: netSysctls(t, path, v)}
			before := sysctlOrNone(w.Host, path)
			if _, err := r.Ensure(t.Context(), w); err != nil {
				if spec.AsError(err, 0).Code != spec.CodeConfig {
					t.Errorf("%s=%s: %v", path, v, err)
				}
				continue
			}
			is, _, _ := procsys.GetNet(w.Container, path)
			took = took || !procsys.SameValue(is, was)
			if now := sysctlOrNone(w.Host, path); now != before {
				t.Errorf("%s=%s: the host's is %q, was %q", path, v, now, before)
			}
			if err := r.Remove(t.Context(), w); err != nil {
				t.Errorf("%s: %v", path, err)
			}
			if is, _, _ := procsys.GetNet(w.Container, path); !procsys.SameValue(is, was) {
				t.Errorf("%s: restored to %q, was %q", path, is, was)
			}
			if took {
				break
			}
		}
		if took {
			changed++
		} else {
			refused["takes none of the values tried"]++
			t.Logf("%s is %q and was not changed", path, was)
		}
	}
	for path, v := range values() {
		if v != hosts[path] {
			t.Errorf("the host's %s became %q, was %q", path, v, hosts[path])
		}
	}
	t.Logf("%d of %d were changed; %v", changed, len(all), refused)
	if changed < len(all)*3/4 {
		t.Error("too few: the test shows little")
	}
	// The path alone is the namespace of whoever opens it.
	if err := w.Host.Do(func() error {
		return os.WriteFile("/proc/sys/net/core/somaxconn", []byte("321"),
			0)
	}); err != nil {
		t.Fatal(err)
	}
	if v := contract.Sysctl(t, w.Host, "net/core/somaxconn"); v != "321" {
		t.Errorf("the host's is %s", v)
	}
}

func sysctlOrNone(ns *kernel.NS, path string) string {
	v, _, _ := procsys.GetNet(ns, path)
	return v
}

// others are values that a setting may take instead of this one.
func others(v string) (list []string) {
	fields := strings.Fields(v)
	for _, d := range []int{1, -1, 2, 64} {
		next := slices.Clone(fields)
		for i, f := range fields {
			if n, err := strconv.Atoi(f); err == nil {
				next[i] = strconv.Itoa(n + d)
			}
		}
		if len(fields) > 0 {
			list = append(list, strings.Join(next, " "))
		}
	}
	return append(list, "0", "1", "2", "reno", "8080", "1 1", "00000001-00000002-00000003-00000004", "::1", "nf_log_ipv4")
}

// What is remembered is of one namespace and one link: another container with the same ID gets nothing of it.
//
// clause: P12 P22
func TestTuningStale(t *testing.T) {
	w, dir := tuningWorld(t), t.TempDir()
	r := Tuning{Owner: contract.Owner, Link: "eth0", MAC: "02:00:00:00:00:07", MTU: 1300, DataDir: dir,
		Sysctls: netSysctls(t, "net.core.somaxconn", "501", "net.ipv6.conf.IFNAME.hop_limit", "9")}
	bare := Tuning{Owner: contract.Owner, Link: "eth0", DataDir: dir}
	none := func(what string) {
		t.Helper()
		if left := nstest.Run(t, "find", dir, w.Store.Dir, "-type", "f"); left != "" {
			t.Errorf("%s left %s", what, left)
		}
	}
	contract.Must(t, w, r)
	other := &kernel.World{Host: w.Host, Container: contract.OpenNS(t), Store: w.Store}
	contract.Container(t, other, "ip link add eth0 address 02:00:00:00:00:44 type veth peer name x")
	before := contract.Container(t, other, "ip link show eth0")
	if err := bare.Remove(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if after := contract.Container(t, other, "ip link show eth0"); after != before ||
		contract.Sysctl(t, other.Container, "net/core/somaxconn") != "4096" {
		t.Errorf("another container got %s, before it was %s", after, before)
	}
	none("a DEL in another container")
	if v := contract.Sysctl(t, w.Container, "net/core/somaxconn"); v != "501" {
		t.Errorf("somaxconn is %s", v)
	}

	// The link was made anew: only what is not its own goes back.
	contract.Container(t, w, "sysctl -qw net.core.somaxconn=4096")
	contract.Container(t, w, "ip link set eth0 mtu 1500")
	contract.Must(t, w, r)
	contract.Container(t, w, "ip link del eth0")
	contract.Container(t, w, "ip link add eth0 mtu 1334 address 02:00:00:00:00:55 type veth peer name x")
	if err := bare.Remove(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	if out := contract.Container(t, w, "ip link show eth0"); !strings.Contains(out, "mtu 1334") ||
		!strings.Contains(out, "02:00:00:00:00:55") || contract.Sysctl(t, w.Container, "net/core/somaxconn") != "4096" {
		t.Errorf("somaxconn %s, and the new link is %s", contract.Sysctl(t, w.Container, "net/core/somaxconn"), out)
	}
	none("a DEL of another link")

	// The link is gone, then the namespace.
	contract.Must(t, w, r)
	contract.Container(t, w, "ip link del eth0")
	if err := bare.Remove(t.Context(), w); err != nil || contract.Sysctl(t, w.Container, "net/core/somaxconn") != "4096" {
		t.Errorf("the link is gone: %v", err)
	}
	none("a DEL without the link")
	contract.Container(t, w, "ip link add eth0 type veth peer name x")
	contract.Must(t, w, r)
	if err := bare.Remove(t.Context(), &kernel.World{Host: w.Host, Store: w.Store}); err != nil {
		t.Fatal(err)
	}
	none("a DEL without the namespace")

	// GC knows the owner alone.
	contract.Container(t, w, "ip link set eth0 mtu 1500")
	contract.Must(t, w, r)
	if err := sweep(t.Context(), w, contract.Owner.Network, []spec.Owner{contract.Owner}); err != nil ||
		r.Verify(t.Context(), w) != nil {
		t.Errorf("gc of others: %v, %v", err, r.Verify(t.Context(), w))
	}
	if left := nstest.Run(t, "find", dir, w.Store.Dir, "-type", "f"); len(strings.Fields(left)) != 2 {
		t.Errorf("gc of others left %s", left)
	}
	if err := sweep(t.Context(), w, contract.Owner.Network, nil); err != nil {
		t.Error(err)
	}
	none("gc")
}

// TestTuningBesideSpoofCheck: where the bridge lets only the container's first MAC pass, another one is refused, and
// nothing is changed. The same one is not.
func TestTuningBesideSpoofCheck(t *testing.T) {
	w := tuningWorld(t)
	l, err := rtnl.LinkByName(w.Container, "eth0")
	if err != nil {
		t.Fatal(err)
	}
	contract.Must(t, w, spoof.Check{Owner: contract.Owner, Link: "veth0", MAC: l.MAC.String()})
	r := Tuning{Owner: contract.Owner, Link: "eth0", MAC: "02:00:5e:00:00:0a", MTU: 1300, DataDir: t.TempDir()}
	before := tunedState(w, r.DataDir)(t)
	refused := new(spec.Error)
	if _, err := r.Ensure(t.Context(), w); !errors.As(err, &refused) || refused.Code != spec.CodeConfig ||
		!strings.Contains(err.Error(), "02:00:5e:00:00:0a") {
		t.Errorf("the MAC that the bridge drops: %v", err)
	}
	if got := tunedState(w, r.DataDir)(t); got != before {
		t.Errorf("differs:%s", contract.Difference(before, got))
	}
	r.MAC = l.MAC.String()
	contract.Must(t, w, r)
}
