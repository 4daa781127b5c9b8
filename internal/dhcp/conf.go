package dhcp

import (
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/spec"
)

// A Conf is the object "ipam" in a configuration of the dhcp plugin. Plugin and daemon both read it.
type Conf struct {
	// The word dhcp.
	Type string `json:"type"`

	Families

	// Path of the daemon's Unix socket. Default: /run/cni/dhcp.sock.
	DaemonSocketPath string `json:"daemonSocketPath"`

	// Start the daemon if none listens on the socket. Default: false, because systemd starts it through
	// cni-dhcp.socket.
	StartDaemon bool `json:"startDaemon"`

	// Options that the client sends to DHCPv4 servers.
	Provide []Provide `json:"provide"`

	// Options that the client asks DHCPv4 servers for, in addition to the default ones: 1, 3, 6, 15, 26, 33, 42, 58,
	// 59, 119 and 121.
	Request []Request `json:"request"`

	// Metric of the lease's routes; a lower one is preferred. Default: the kernel's, 0 for IPv4 and 1024 for IPv6.
	Priority int `json:"priority"`

	// Up to 1024 routes in addition to the server's. A route replaces the server's route with the same destination,
	// table and metric. Without gw, it leads to the router of the lease.
	Routes []spec.Route `json:"routes"`

	// Name of the container that the client sends (option 12); some servers put it into DNS. Default: K8S_POD_NAME of
	// CNI_ARGS, or no name.
	Hostname string `json:"hostname"`

	// Vendor class that the client sends (option 60); some servers choose addresses and options by it. Default: none.
	VendorClass string `json:"vendorClass"`

	// Client identifier (option 61), by which the server recognises the container. The text is sent unchanged, without
	// a type byte. Default: a byte 0, then CONTAINERID/NETWORK/IFNAME, as the reference plugin sends it.
	ClientID string `json:"clientID"`

	// Ask the server to send its answers as broadcasts. Links that receive no unicast packets before they have an
	// address need it. Default: true on an ipvlan, else false.
	Broadcast bool `json:"broadcast"`
}

// A Provide is an option that the client sends.
type Provide struct {
	// Number of the option, or one of dhcp-client-identifier, subnet-mask, routers, host-name, user-class,
	// vendor-class-identifier.
	Option string `json:"option" want:"/^(0*([0-9]|[1-9][0-9]|1[0-9][0-9]|2[0-4][0-9]|25[0-5])|dhcp-client-identifier|subnet-mask|routers|host-name|user-class|vendor-class-identifier)$/" says:"a number from 0 to 255, or one of dhcp-client-identifier, subnet-mask, routers, host-name, user-class, vendor-class-identifier" lacks:"a number from 0 to 255, or one of dhcp-client-identifier, subnet-mask, routers, host-name, user-class, vendor-class-identifier"`
	// Value of the option: a text of at most 255 bytes. An option with an empty value is not sent.
	Value string `json:"value"`
	// Key of CNI_ARGS that has the value. If CNI_ARGS lacks the key, value is used.
	FromArg string `json:"fromArg"`
}

// A Request is an option that the client asks for.
type Request struct {
	// Number or name of the option, as in provide.
	Option string `json:"option" want:"/^(0*([0-9]|[1-9][0-9]|1[0-9][0-9]|2[0-4][0-9]|25[0-5])|dhcp-client-identifier|subnet-mask|routers|host-name|user-class|vendor-class-identifier)$/" says:"a number from 0 to 255, or one of dhcp-client-identifier, subnet-mask, routers, host-name, user-class, vendor-class-identifier" lacks:"a number from 0 to 255, or one of dhcp-client-identifier, subnet-mask, routers, host-name, user-class, vendor-class-identifier"`
	// Ask only for the options in request, not for the default ones. One entry with true is enough.
	SkipDefault bool `json:"skipDefault"`
}

// Socket returns the configured path of the daemon's socket, or def.
func (c Conf) Socket(def string) string {
	if c.DaemonSocketPath != "" {
		return c.DaemonSocketPath
	}
	return def
}

// Requested4 returns the options that a lease and its times are made of. Option 121 precedes those that it replaces
// (RFC 3442).
func Requested4() []uint16 { return []uint16{1, 121, 3, 33, 6, 15, 119, 26, 42, 58, 59} }

// ask4 returns what the client asks DHCPv4 servers for. Args are CNI_ARGS. Errors have code 7 and name the key.
func (c Conf) ask4(o spec.Owner, args string) (Ask, error) {
	a := Ask{Owner: o, Hostname: c.Hostname, VendorClass: c.VendorClass, Broadcast: c.Broadcast,
		Options: map[uint16][]byte{}, Request: Requested4(), Metric: c.Priority}
	if a.Hostname == "" {
		a.Hostname, _ = arg(args, "K8S_POD_NAME")
	}
	set := func(path string, code uint16, value string) error {
		if len(value) > 255 {
			return spec.Errorf(spec.CodeConfig, "%s: has %d bytes: an option has at most 255", path, len(value))
		}
		a.Options[code] = []byte(value)
		return nil
	}
	for path, text := range map[string]string{"ipam.hostname": a.Hostname, "ipam.vendorClass": c.VendorClass} {
		if len(text) > 255 {
			return a, spec.Errorf(spec.CodeConfig, "%s: has %d bytes: an option has at most 255", path, len(text))
		}
	}
	if c.ClientID != "" {
		if err := set("ipam.clientID", 61, c.ClientID); err != nil {
			return a, err
		}
	}
	for i, p := range c.Provide {
		path := "ipam.provide[" + strconv.Itoa(i) + "]"
		code, err := option(path, p.Option)
		if err != nil {
			return a, err
		}
		value := p.Value
		if v, ok := arg(args, p.FromArg); ok && p.FromArg != "" {
			value = v
		}
		if err := set(path+".value", code, value); err != nil {
			return a, err
		}
	}
	for i, r := range c.Request {
		code, err := option("ipam.request["+strconv.Itoa(i)+"]", r.Option)
		if err != nil {
			return a, err
		}
		if !slices.Contains(a.Request, code) {
			a.Request = append(a.Request, code)
		}
	}
	if slices.ContainsFunc(c.Request, func(r Request) bool { return r.SkipDefault }) {
		a.Request = nil
		for _, r := range c.Request {
			code, _ := option("", r.Option)
			a.Request = append(a.Request, code)
		}
	}
	return a, nil
}

func option(path, name string) (uint16, error) {
	switch name {
	case "subnet-mask":
		return 1, nil
	case "routers":
		return 3, nil
	case "host-name":
		return 12, nil
	case "vendor-class-identifier":
		return 60, nil
	case "dhcp-client-identifier":
		return 61, nil
	case "user-class":
		return 77, nil
	}
	n, err := strconv.ParseUint(name, 10, 8)
	if err != nil {
		return 0, spec.Errorf(spec.CodeConfig,
			"%s.option: %q: want a number from 0 to 255, or one of dhcp-client-identifier, "+
				"subnet-mask, routers, host-name, user-class, vendor-class-identifier", path, name)
	}
	return uint16(n), nil
}

// arg returns the value of a key in CNI_ARGS. Like the reference plugin, it ignores parts that are not KEY=VALUE.
func arg(args, key string) (string, bool) {
	for pair := range strings.SplitSeq(args, ";") {
		if k, v, ok := strings.Cut(pair, "="); ok && k == key {
			return v, true
		}
	}
	return "", false
}
