package sdk

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/spec"
)

type testConf struct {
	Name2 string `json:"label"`
	MTU   int    `json:"mtu"`
	Port  uint16 `json:"port"`
	On    bool   `json:"isGateway"`
	Ptr   *bool  `json:"snat"`
	Nets  [][]struct {
		Subnet netip.Prefix `json:"subnet"`
		GW     netip.Addr   `json:"gateway"`
	} `json:"ranges"`
	Map  map[string]string `json:"sysctl"`
	IPAM struct {
		Type   string `json:"type"`
		Subnet string `json:"subnet"`
	} `json:"ipam"`
	RuntimeConfig struct {
		PortMappings []struct {
			HostPort  int      `json:"hostPort"`
			AllowFrom []string `json:"allowFrom"`
		} `json:"portMappings"`
	} `json:"runtimeConfig"`
}

func decodeText(t *testing.T, text string, allocator bool) (testConf, []unknownKey, error) {
	t.Helper()
	conf, err := spec.ParseConf([]byte(`{"cniVersion":"1.1.0","name":"n","type":"t",` + text + `}`))
	if err != nil {
		t.Fatal(err)
	}
	var c testConf
	unknown, err := decode(conf, &c, allocator, "ADD")
	return c, unknown, err
}

// clause: C11 C12 K13
func TestDecode(t *testing.T) {
	c, unknown, err := decodeText(t, `"LABEL":"x","mtu":1400,"isgateway":true,"snat":false,"ranges":[[{"subnet":"10.0.0.5/24","gateway":""}]],"sysctl":{"a.b":"1"},"port":null,
		"args":{"whatever":1},"cni.dev/x":1,"ipam":{"type":"h","subnett":"x"}`, false)
	if err != nil || len(unknown) != 0 {
		t.Fatalf("unknown %v, error %v", unknown, err)
	}
	if c.Name2 != "x" || c.MTU != 1400 || !c.On || c.Ptr == nil || *c.Ptr ||
		c.Nets[0][0].Subnet.String() != "10.0.0.5/24" || c.Nets[0][0].GW.IsValid() || c.Map["a.b"] != "1" {
		t.Errorf("decoded %+v", c)
	}
	if c, _, _ := decodeText(t, `"MTU":1,"mtu":2`, false); c.MTU != 2 {
		t.Errorf("the exact spelling is not preferred: mtu %d", c.MTU)
	}
}

// clause: P8
func TestDecodeErrors(t *testing.T) {
	for _, tt := range []struct {
		conf, want string
		code       spec.Code
	}{
		{`"mtu":"1500"`, `mtu: "1500": want a whole number`, spec.CodeDecode},
		{`"mtu":1.5`, `mtu: 1.5: want a whole number`, spec.CodeDecode},
		{`"port":70000`, `port: 70000: want a whole number`, spec.CodeDecode},
		{`"isGateway":"yes"`, `isGateway: "yes": want true or false`, spec.CodeDecode},
		{`"ranges":{}`, `ranges: {}: want a list`, spec.CodeDecode},
		{`"ranges":[[{"subnet":"10.0.0.0/24"},{"subnet":"10.0.0.0/33"}]]`, `ranges[0][1].subnet: "10.0.0.0/33"`, spec.CodeConfig},
		{`"ranges":[[{"subnet":"10.0.0.0/24","gateway":"10.0.0.01"}]]`, `ranges[0][0].gateway: "10.0.0.01"`, spec.CodeConfig},
		{`"sysctl":{"b":1,"a":"1"}`, `sysctl.b: 1: want a string`, spec.CodeDecode},
	} {
		_, _, err := decodeText(t, tt.conf, false)
		if err == nil || !strings.Contains(err.Error(), tt.want) || document(err).Code != tt.code {
			t.Errorf("%s: error %v (code %d), want %q and code %d", tt.conf, err, document(err).Code, tt.want, tt.code)
		}
	}
}

func TestDecodeUnknown(t *testing.T) {
	_, unknown, _ := decodeText(t, `"isGatway":true,"ranges":[[{"subnte":"x"}]]`, false)
	if len(unknown) != 2 || unknown[0].String() != `unknown key "isGatway", did you mean "isGateway"?` || unknown[1].path != "ranges[0][0].subnte" {
		t.Errorf("interface plugin: %v", unknown)
	}
	for wrong, right := range map[string]string{"dnss": "dns", "capabilites": "capabilities", "Mtuu": "mtu"} {
		_, unknown, _ = decodeText(t, `"`+wrong+`":{}`, false)
		if len(unknown) != 1 || unknown[0].String() != `unknown key "`+wrong+`", did you mean "`+right+`"?` {
			t.Errorf("%s: %v", wrong, unknown)
		}
	}
	_, unknown, _ = decodeText(t, `"isGatway":true,"ipam":{"type":"h","subnett":"x"}`, true)
	if len(unknown) != 1 || unknown[0].String() != `unknown key "ipam.subnett", did you mean "subnet"?` {
		t.Errorf("allocator: %v", unknown)
	}
	// Of what the runtime offers only the inside of what the plugin reads is its own; runtimes write keys in any case.
	for _, allocator := range []bool{false, true} {
		_, unknown, _ = decodeText(t, `"runtimeConfig":{"bandwidth":{"x":1},"portMappings":[{"HOSTPORT":1},{"HostPort":1,"AllowFrom":[],"allowfrm":["192.0.2.0/24"]}]}`, allocator)
		if len(unknown) != 1 || unknown[0].String() != `unknown key "runtimeConfig.portMappings[1].allowfrm", did you mean "allowFrom"?` {
			t.Errorf("capabilities: %v", unknown)
		} else if err := unknown[0].refused().Error(); err != `runtimeConfig.portMappings[1].allowfrm: ["192.0.2.0/24"]: unknown key, and "strict" is set; did you mean "allowFrom"?` {
			t.Errorf("strict: %s", err)
		}
	}
}
