package dhcp

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/spec"
)

func TestAsk4(t *testing.T) {
	o := spec.Owner{Network: "net", ContainerID: "c1", IfName: "eth0"}
	asked := "1 121 3 33 6 15 119 26 42 58 59"
	for conf, want := range map[string]string{
		`{}`: "- - map[] " + asked,
		`{"hostname":"h","vendorClass":"v","clientID":"id","broadcast":true}`:                                                                                       "h v map[61:id] " + asked + " broadcast",
		`{"provide":[{"option":"host-name","value":"x"},{"option":"12","value":"y"},{"option":"vendor-class-identifier","value":"v"},{"option":"77","value":"u"}]}`: "- - map[12:y 60:v 77:u] " + asked,
		`{"provide":[{"option":"dhcp-client-identifier","value":"x","fromArg":"K8S_POD_NAMESPACE"},{"option":"user-class","fromArg":"NONE"}]}`:                      "- - map[61:shop 77:] " + asked,
		`{"request":[{"option":"subnet-mask"},{"option":"43"}]}`:                                                                                                    "- - map[] " + asked + " 43",
		`{"request":[{"option":"routers"},{"option":"subnet-mask","skipDefault":true},{"option":"255"}]}`:                                                           "- - map[] 3 1 255",
	} {
		var c Conf
		if err := json.Unmarshal([]byte(conf), &c); err != nil {
			t.Fatal(err)
		}
		a, err := c.ask4(o, "bare;=;K8S_POD_NAMESPACE=shop;X=a=b")
		if err != nil {
			t.Errorf("%s: %v", conf, err)
			continue
		}
		options := map[uint16]string{}
		for k, v := range a.Options {
			options[k] = string(v)
		}
		got := fmt.Sprint(dash(a.Hostname), " ", dash(a.VendorClass), " ", options, " ",
			strings.Trim(fmt.Sprint(a.Request), "[]"))
		if a.Broadcast {
			got += " broadcast"
		}
		if got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", conf, got, want)
		}
	}
	if a, _ := (Conf{}).ask4(o, "K8S_POD_NAME=pod"); a.Hostname != "pod" {
		t.Errorf("hostname %q", a.Hostname)
	}
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// clause: P8
func TestRefused(t *testing.T) {
	long := strings.Repeat("x", 256)
	for conf, want := range map[string]string{
		`{"provide":[{"option":"1","value":"x"},{"option":"nonsense"}]}`: `ipam.provide[1].option: "nonsense": want a number from 0 to 255, or one of`,
		`{"provide":[{"option":"256","value":"x"}]}`:                     `ipam.provide[0].option: "256"`,
		`{"provide":[{"option":"12","value":"` + long + `"}]}`:           `ipam.provide[0].value: has 256 bytes`,
		`{"request":[{"option":"-1"}]}`:                                  `ipam.request[0].option: "-1"`,
		`{"hostname":"` + long + `"}`:                                    `ipam.hostname: has 256 bytes`,
		`{"vendorClass":"` + long + `"}`:                                 `ipam.vendorClass: has 256 bytes`,
		`{"clientID":"` + long + `"}`:                                    `ipam.clientID: has 256 bytes`,
	} {
		var c Conf
		if err := json.Unmarshal([]byte(conf), &c); err != nil {
			t.Fatal(err)
		}
		_, err := c.ask4(spec.Owner{}, "")
		if e, ok := err.(*spec.Error); !ok || e.Code != spec.CodeConfig || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", conf, err, want)
		}
	}
}

// A lease is what it was when it comes back from its file.
func TestLeaseFile(t *testing.T) {
	scope := 253
	l := Lease{Addresses: []Address{{Prefix: netip.MustParsePrefix("10.9.0.77/24"), Valid: Forever}},
		Gateway: netip.MustParseAddr("10.9.0.1"),
		Routes: []spec.Route{{Dst: netip.MustParsePrefix("0.0.0.0/0"), GW: netip.MustParseAddr("10.9.0.1"), Scope: &scope,
			MTU: 1400}},
		DNS: spec.DNS{Nameservers: []string{"10.9.0.53"},
			Domain: "lan.example"}, NTP: []netip.Addr{netip.MustParseAddr("10.9.0.123")}, MTU: 1400,
		Asked: time.Now().UTC().Round(0), T1: Forever, T2: Forever, Valid: Forever, Server: Server{netip.MustParseAddr("10.9.0.1"),
			"02:00:00:00:00:01", []byte{1}},
		Link: "eth0", MAC: "02:00:00:00:00:02", State: map[string]string{"a": "b"}}
	b, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	var back Lease
	if err := json.Unmarshal(b, &back); err != nil || !reflect.DeepEqual(l, back) {
		t.Errorf("%v\n%+v\n%+v", err, l, back)
	}
	if !l.Over().IsZero() {
		t.Error("it ends")
	}
	var res spec.Result
	l.Result(&res, 7)
	if len(res.IPs) != 1 || res.IPs[0].Gateway != l.Gateway || res.Routes[0].Priority != 7 || l.Routes[0].Priority != 0 ||
		res.DNS.Domain != "lan.example" {
		t.Errorf("result %+v of %+v", res, l)
	}
}
