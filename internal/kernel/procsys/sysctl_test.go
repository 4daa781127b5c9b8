package procsys

import (
	"testing"
)

func TestSysctlPath(t *testing.T) {
	for key, want := range map[string]string{
		"net.ipv4.ip_forward":                 "net/ipv4/ip_forward",
		"net/ipv4/ip_forward":                 "net/ipv4/ip_forward",
		"net.ipv4.conf.eth0/5.rp_filter":      "net/ipv4/conf/eth0.5/rp_filter",
		"net/ipv4/conf/eth0.5/rp_filter":      "net/ipv4/conf/eth0.5/rp_filter",
		"net.ipv4.conf.eth0.5.rp_filter":      "net/ipv4/conf/eth0.5/rp_filter",
		"net.ipv6.neigh.eth0.5.gc_stale_time": "net/ipv6/neigh/eth0.5/gc_stale_time",
		"net.ipv4.conf.all.forwarding":        "net/ipv4/conf/all/forwarding",
		"vm.swappiness":                       "vm/swappiness",
		"":                                    "",
		"net..ipv4":                           "",
		"net/../kernel/hostname":              "",
		"net.ipv4.conf.//.rp_filter":          "",
		"/net":                                "",
		"net/":                                "",
		"net\x00":                             "",
	} {
		got, err := Path(key)
		if want != "" {
			want = "/proc/sys/" + want
		}
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v, want %q", key, got, err, want)
		}
	}
}
