package attach_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"

	"github.com/fairlead-cni/fairlead/attach"
)

// What a runtime says of an attachment, with types in the place of the conventions' names.
func ExampleCapabilities() {
	web := attach.Attachment{ContainerID: "web", Netns: "/run/netns/web", IfName: "eth0",
		Capabilities: attach.Capabilities{
			PortMappings: []attach.PortMapping{{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"}},
			Bandwidth:    &attach.Bandwidth{IngressRate: 1_000_000_000},
			Aliases:      []string{"web", "www"},
		}.Map()}
	b, err := json.MarshalIndent(web.Capabilities, "", "  ")
	if err != nil {
		panic(err)
	}
	fmt.Println(string(b))
	// Output:
	// {
	//   "aliases": [
	//     "web",
	//     "www"
	//   ],
	//   "bandwidth": {
	//     "ingressRate": 1000000000
	//   },
	//   "portMappings": [
	//     {
	//       "hostPort": 8080,
	//       "containerPort": 80,
	//       "protocol": "tcp"
	//     }
	//   ]
	// }
}

// All capabilities are as the conventions write them, and what is not said is not there.
func TestCapabilities(t *testing.T) {
	all := attach.Capabilities{
		PortMappings: []attach.PortMapping{{HostPort: 80, HostPortEnd: 89, ContainerPort: 80, Protocol: "udp", HostIP: "::"}},
		IPRanges: [][]attach.IPRange{{{Subnet: netip.MustParsePrefix("10.1.2.0/24"),
			RangeStart: netip.MustParseAddr("10.1.2.3"), RangeEnd: netip.MustParseAddr("10.1.2.9"),
			Gateway: netip.MustParseAddr("10.1.2.254")}}, {{Subnet: netip.MustParsePrefix("fd00::/64")}}},
		IPs: []netip.Prefix{netip.MustParsePrefix("10.1.2.3/24")}, MAC: "02:00:00:00:00:01",
		Bandwidth:      &attach.Bandwidth{IngressRate: 1 << 63, IngressBurst: 2, EgressRate: 3, EgressBurst: 4},
		DNS:            &attach.DNS{Searches: []string{"example"}, Servers: []string{"192.0.2.53"}},
		Aliases:        []string{"web"},
		DeviceID:       "0000:00:1f.6",
		InfinibandGUID: "c2:11:22:33:44:55:66:77", CgroupPath: "/kubepods",
	}
	for want, c := range map[string]attach.Capabilities{
		`{}`: {},
		`{"aliases":["web"],"bandwidth":{"ingressRate":9223372036854775808,"ingressBurst":2,"egressRate":3,"egressBurst":4},` +
			`"cgroupPath":"/kubepods","deviceID":"0000:00:1f.6","dns":{"searches":["example"],"servers":["192.0.2.53"]},` +
			`"infinibandGUID":"c2:11:22:33:44:55:66:77","ipRanges":[[{"subnet":"10.1.2.0/24","rangeStart":"10.1.2.3",` +
			`"rangeEnd":"10.1.2.9","gateway":"10.1.2.254"}],[{"subnet":"fd00::/64"}]],"ips":["10.1.2.3/24"],` +
			`"mac":"02:00:00:00:00:01","portMappings":[{"hostPort":80,"hostPortEnd":89,"containerPort":80,"protocol":"udp",` +
			`"hostIP":"::"}]}`: all,
	} {
		b, err := json.Marshal(c.Map())
		if err != nil || string(b) != want {
			t.Errorf("%s, %v\nwant\n%s", b, err, want)
		}
	}
}
