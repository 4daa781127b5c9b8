package dhcp

import (
	"encoding/binary"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/spec"
)

// Families has the keys that select the address families of a container, and those of IPv6.
type Families struct {
	// How the container gets its IPv4 address. dhcp: by DHCPv4; off: it gets none. Default: dhcp.
	IPv4 string `json:"ipv4" want:"dhcp|off"`

	// How the container gets its IPv6 addresses. dhcpv6: by DHCPv6; slaac: from router advertisements; off: it gets
	// none. With dhcpv6 and slaac the kernel adds and updates the routes that routers advertise, such as the default
	// route. Default: off.
	IPv6 string `json:"ipv6" want:"dhcpv6|slaac|off"`

	// Length of the prefix to request from the DHCPv6 server (prefix delegation), 1 to 128, for example 64. The server
	// may delegate a prefix of another length; `fairlead dhcp ls` shows it. Default: 0, no prefix.
	PrefixDelegation int `json:"prefixDelegation" want:"0..128" says:"a length of 1 to 128"`

	// Identifier of the container for DHCPv6 servers (DUID): 3 to 130 bytes in hexadecimal digits, with or without
	// colons between bytes. Default: a UUID (type 4) that derives from the host's machine ID, network, container ID and
	// interface name.
	DUID string `json:"duid" want:"/^[0-9a-fA-F]{2}(:?[0-9a-fA-F]{2}){2,129}$/" says:"3 to 130 bytes as hexadecimal digits"`

	// Options that the client sends to DHCPv6 servers.
	Provide6 []Provide6 `json:"provide6"`
}

// A Provide6 is an option that the client sends to DHCPv6 servers.
type Provide6 struct {
	// Number of the option, 1 to 65535. Option 15 (user class) is sent with the length field that RFC 8415 requires.
	Option string `json:"option" want:"/^0*([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$/" says:"a number from 1 to 65535" lacks:"a number from 1 to 65535"`
	// Value of the option: a text of at most 1024 bytes.
	Value string `json:"value"`
	// Value of the option in hexadecimal digits, with or without colons between bytes. Excludes value.
	Hex string `json:"hex" want:"/^([0-9a-fA-F]{2}:?)*$/" says:"bytes as hexadecimal digits"`
	// Key of CNI_ARGS that has the value. If CNI_ARGS lacks the key, value or hex is used.
	FromArg string `json:"fromArg"`
}

// The names of the protocols.
const (
	DHCPv4 = "dhcpv4"
	DHCPv6 = "dhcpv6"
	SLAAC  = "slaac"
)

// protocols returns the protocols by which an owner gets leases, that of IPv4 first.
func (f Families) protocols() (names []string, err error) {
	switch f.IPv4 {
	case "", "dhcp":
		names = append(names, DHCPv4)
	case "off":
	default:
		return nil, spec.Errorf(spec.CodeConfig, "ipam.ipv4: %q: want \"dhcp\" or \"off\"", f.IPv4)
	}
	switch f.IPv6 {
	case "", "off":
	case DHCPv6, SLAAC:
		names = append(names, f.IPv6)
	default:
		return nil, spec.Errorf(spec.CodeConfig, "ipam.ipv6: %q: want \"dhcpv6\", \"slaac\" or \"off\"", f.IPv6)
	}
	if len(names) == 0 {
		return nil, spec.Errorf(spec.CodeConfig,
			"ipam.ipv4 and ipam.ipv6: both are off: want at least one")
	}
	return names, nil
}

// A Wanted is one lease that an owner should get: the protocol, and what the client asks for.
type Wanted struct {
	Protocol string
	Ask      Ask
}

// Wanted returns the leases that an owner should get. Args are CNI_ARGS. Errors have code 7 and name the key.
func (c Conf) Wanted(o spec.Owner, args string) (list []Wanted, err error) {
	names, err := c.protocols()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		w := Wanted{Protocol: name}
		if name == DHCPv4 {
			w.Ask, err = c.ask4(o, args)
		} else {
			w.Ask, err = c.ask6(o, args)
		}
		if err != nil {
			return nil, err
		}
		if w.Ask.Routes, err = c.routes(name == DHCPv4); err != nil {
			return nil, err
		}
		list = append(list, w)
	}
	if c.PrefixDelegation != 0 && c.IPv6 != DHCPv6 {
		return nil, spec.Errorf(spec.CodeConfig,
			"ipam.prefixDelegation: %d: DHCPv6 delegates prefixes: set ipam.ipv6 to \"dhcpv6\"", c.PrefixDelegation)
	}
	return list, nil
}

func (c Conf) ask6(o spec.Owner, args string) (Ask, error) {
	a := Ask{Owner: o, Hostname: c.Hostname, Options: map[uint16][]byte{}, Metric: c.Priority,
		Delegate: c.PrefixDelegation}
	if a.Hostname == "" {
		a.Hostname, _ = arg(args, "K8S_POD_NAME")
	}
	if len(a.Hostname) > 255 {
		return a, spec.Errorf(spec.CodeConfig, "ipam.hostname: has %d bytes: a name has at most 255", len(a.Hostname))
	}
	if a.Delegate < 0 || a.Delegate > 128 {
		return a, spec.Errorf(spec.CodeConfig, "ipam.prefixDelegation: %d: want a length of 1 to 128", a.Delegate)
	}
	if c.DUID != "" {
		id, err := digits(c.DUID)
		if err != nil || len(id) < 3 || len(id) > 130 {
			return a, spec.Errorf(spec.CodeConfig, "ipam.duid: %q: want 3 to 130 bytes as hexadecimal digits", c.DUID)
		}
		a.Options[1] = id
	}
	for i, p := range c.Provide6 {
		path := "ipam.provide6[" + strconv.Itoa(i) + "]"
		code, err := option6(path, p.Option)
		if err != nil {
			return a, err
		}
		value := []byte(p.Value)
		switch v, ok := arg(args, p.FromArg); {
		case ok && p.FromArg != "":
			value = []byte(v)
		case p.Hex != "" && p.Value != "":
			return a, spec.Errorf(spec.CodeConfig, "%s: value and hex: set one of them", path)
		case p.Hex != "":
			if value, err = digits(p.Hex); err != nil {
				return a, spec.Errorf(spec.CodeConfig, "%s.hex: %q: want bytes as hexadecimal digits", path, p.Hex)
			}
		}
		if len(value) > 1024 {
			return a, spec.Errorf(spec.CodeConfig, "%s: has %d bytes: want at most 1024", path, len(value))
		}
		if code == 15 { // user classes, each behind its length (RFC 8415, 21.15)
			value = append(binary.BigEndian.AppendUint16(nil, uint16(len(value))), value...)
		}
		a.Options[code] = value
	}
	return a, nil
}

func digits(s string) ([]byte, error) { return hex.DecodeString(strings.ReplaceAll(s, ":", "")) }

// option6 returns the number of an option. Options that the protocol itself uses cannot be set.
func option6(path, name string) (uint16, error) {
	n, err := strconv.ParseUint(name, 10, 16)
	if err != nil || n == 0 {
		return 0, spec.Errorf(spec.CodeConfig, "%s.option: %q: want a number from 1 to 65535", path, name)
	}
	if n <= 14 || n == 25 || n == 26 {
		return 0, spec.Errorf(spec.CodeConfig,
			"%s.option: %q: the client sets this option itself; use \"duid\" to set the identifier of the container",
			path, name)
	}
	return uint16(n), nil
}
