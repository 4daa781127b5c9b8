// Package sdktest holds plugins against text files: a configuration and a call go in, and the plan that
// comes out, or the error, has to be what the file says.
package sdktest

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/txtar"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// Goldens plans every testdata/*.txtar of the package under test. A file has a "conf" (the plugin's stdin), a "call"
// (the verb, then HostLinks as "link NAME KIND [MASTER]", Peer as "peer NAME", Missing as "missing NAME", addresses as
// "ip PREFIX [GATEWAY]", routes as "route DST [GW] [KEY=NUMBER…]", and "args K=V;…"), and "plan" or "error". With
// -update it writes the last two; the package's test declares that flag. The text before the first part says what the
// file is about. The example.txtar of the reference page is a list, and internal/docgen plans it.
func Goldens(t *testing.T, p sdk.Plugin) {
	update := flag.Lookup("update") != nil && flag.Lookup("update").Value.String() == "true"
	files, err := filepath.Glob("testdata/*.txtar")
	files = slices.DeleteFunc(files, func(f string) bool { return filepath.Base(f) == "example.txtar" })
	if err != nil || len(files) == 0 {
		t.Fatalf("no testdata: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			ar, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			part := ar.Parts()
			got := map[string]string{"plan": "", "error": ""}
			text, err := text(p, part["conf"], part["call"])
			if err != nil {
				got["error"] = err.Error() + "\n"
			} else {
				got["plan"] = text
			}
			if update {
				keep := ar.Files[:0]
				for _, f := range ar.Files {
					if f.Name != "plan" && f.Name != "error" {
						keep = append(keep, f)
					}
				}
				for name, data := range got {
					if data != "" {
						keep = append(keep, txtar.File{Name: name, Data: data})
					}
				}
				ar.Files = keep
				if err := os.WriteFile(file, []byte(ar.String()), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			for name, data := range got {
				if data != part[name] {
					t.Errorf("%s is\n%s\nwant\n%s", name, data, part[name])
				}
			}
		})
	}
}

func text(p sdk.Plugin, conf, call string) (string, error) {
	c, err := spec.ParseConf([]byte(conf))
	if err != nil {
		return "", err
	}
	asked, err := parseCall(call)
	if err != nil {
		return "", err
	}
	o := spec.Owner{Network: c.Name, ContainerID: "c1", IfName: "eth0"}
	r, err := p.NewRequest(asked.verb, o, "/run/netns/c1", c, asked.args)
	if err != nil {
		return "", err
	}
	if asked.verb == "DEL" {
		var del []string
		for _, k := range p.Kinds(c) {
			del = append(del, k.Name())
		}
		return strings.Join(del, "\n") + "\n", nil
	}
	if asked.ips != nil {
		r.IPs, r.Routes = asked.ips, asked.routes
	}
	r.Links, r.PathMTU = asked.links, asked.mtu
	want, _, err := p.Plan(c, r)
	if err != nil {
		return "", err
	}
	text := want.Plan.String()
	for _, machine := range [][2]string{{r.MAC(""), "MAC"}, {r.HostMAC(), "HOSTMAC"}} { // of a plugin that makes links
		if machine[0] != "" {
			text = strings.ReplaceAll(text, machine[0], machine[1])
		}
	}
	return text, nil
}

// A plannedCall is what a golden says of the call whose plan it shows.
type plannedCall struct {
	verb   string
	args   [][2]string
	ips    []spec.IP
	routes []spec.Route
	links  sdk.Links
	mtu    int
}

// parseCall reads a golden's call: a line for its verb, and one for each thing that it is given.
func parseCall(call string) (plannedCall, error) {
	c := plannedCall{verb: "ADD"}
	for _, line := range strings.Split(strings.TrimSpace(call), "\n") {
		f := append(strings.Fields(line), "", "", "")
		switch f[0] {
		case "ip":
			ip := spec.IP{}
			if err := ip.Address.UnmarshalText([]byte(f[1])); err != nil {
				return c, err
			}
			if err := ip.Gateway.UnmarshalText([]byte(f[2])); err != nil {
				return c, err
			}
			c.ips = append(c.ips, ip)
		case "route":
			rt, err := route(f[1:])
			if err != nil {
				return c, err
			}
			c.routes = append(c.routes, rt)
		case "link":
			c.links.HostLinks = append(c.links.HostLinks, resource.HostLink{Name: f[1], Kind: f[2], Master: f[3]})
		case "peer":
			c.links.Peer = &resource.HostLink{Name: f[1], Kind: "veth"}
		case "missing":
			c.links.Missing = append(c.links.Missing, f[1])
		case "path-mtu":
			mtu, err := strconv.Atoi(f[1])
			if err != nil {
				return c, err
			}
			c.mtu = mtu
		case "args":
			args, err := spec.ParseArgs(f[1])
			if err != nil {
				return c, err
			}
			c.args = args
		default:
			c.verb = f[0]
		}
	}
	return c, nil
}

// route parses a destination, an optional gateway and optional numbers.
func route(words []string) (spec.Route, error) {
	var rt spec.Route
	err := rt.Dst.UnmarshalText([]byte(words[0]))
	for _, w := range words[1:] {
		key, value, number := strings.Cut(w, "=")
		if !number {
			if w != "" {
				err = errors.Join(err, rt.GW.UnmarshalText([]byte(w)))
			}
			continue
		}
		n, nerr := strconv.Atoi(value)
		err = errors.Join(err, nerr)
		switch key {
		case "mtu":
			rt.MTU = n
		case "advmss":
			rt.AdvMSS = n
		case "priority":
			rt.Priority = n
		case "table":
			rt.Table = &n
		case "scope":
			rt.Scope = &n
		default:
			err = errors.Join(err, fmt.Errorf("route: %q", key))
		}
	}
	return rt, err
}
