package spec

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/spelling"
)

// A Conf is the configuration of one plugin: the keys that the protocol defines, and the whole object.
type Conf struct {
	CNIVersion   Version // 0.1.0 where it is left out (clause V5)
	Name         string  // of the network
	Type         string  // of the plugin
	IPAMType     string
	Capabilities map[string]bool
	DNS          *DNS
	PrevResult   *Result

	ValidAttachments    []Attachment // GC: both keys in use, together
	HasValidAttachments bool         // GC: one of the keys is there; its list may be empty, or null

	Object Object // everything, as it was written
}

// An Attachment is one interface of one container, as a runtime lists it for GC.
type Attachment struct {
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifname"`
}

// The keys that GC has its list under: the specification's, and an older one that libraries still send.
const (
	keyValid    = "cni.dev/valid-attachments"
	keyValidOld = "cni.dev/attachments"
)

// ParseConf reads the configuration that a plugin gets on standard input. Errors are of type *Error: code 6 for input
// that is not JSON or has a value of the wrong type, with line and column; code 7 for a bad or missing name or type.
// Keys match in any case, as in other implementations.
//
// Of a configuration whose version is not Known, only name and type are read, without an error: the plugin refuses it
// (clause V3). If anything beyond name, version and types cannot be read, ParseConf returns both the error and the rest
// of the configuration, because DEL continues without it (clause P12).
func ParseConf(b []byte) (*Conf, error) {
	d, err := openObject(b, "the configuration")
	if err != nil {
		return nil, err.asError()
	}
	c := &Conf{Object: d.members(d.root)}
	if err := d.identity(c); err != nil {
		return nil, err.asError()
	}
	if !c.CNIVersion.Known() {
		return c, nil
	}
	err = d.stdin(c)
	if m, ok := d.root.fold("prevResult"); ok {
		prev, perr := d.result(m.node, c.CNIVersion, "prevResult")
		if c.PrevResult = prev; err == nil {
			err = perr
		}
	}
	if err != nil {
		c.ValidAttachments, c.HasValidAttachments = nil, false
		return c, err.asError()
	}
	return c, nil
}

// ParsePlugin reads the configuration of one plugin as it is written in a list, without Name and CNIVersion. Path is
// its place in the list, for error messages. Errors are of type *Error.
func ParsePlugin(b []byte, path string) (*Conf, error) {
	d, err := openObject(b, cmp.Or(path, "the plugin"))
	if err != nil {
		err.Line, err.Column = 0, 0
		return nil, err.asError()
	}
	c := &Conf{Object: d.members(d.root)}
	if err := d.plugin(d.root, path, c); err != nil {
		err.Line, err.Column = 0, 0 // of what is only a part of a file
		return nil, err.asError()
	}
	return c, nil
}

// identity reads name, version and the types of the plugins.
func (d *document) identity(c *Conf) *FileError {
	if err := d.networkName(d.root, "", &c.Name); err != nil {
		return err
	}
	if m, ok := d.root.fold("cniVersion"); ok {
		if err := d.str(m.node, "cniVersion", (*string)(&c.CNIVersion)); err != nil {
			return err
		}
	}
	if c.CNIVersion = c.CNIVersion.Or010(); !c.CNIVersion.Known() {
		if m, ok := d.root.fold("type"); ok && m.node.kind == '"' {
			c.Type = text(d.raw(m.node))
		}
		return nil
	}
	return d.plugins(d.root, "", c)
}

// stdin reads everything else but prevResult.
func (d *document) stdin(c *Conf) *FileError {
	if err := d.wellKnown(d.root, "", c); err != nil {
		return err
	}
	for _, key := range []string{keyValid, keyValidOld} {
		// Null is an empty list: libcni marshals the nil slice of a runtime that has no attachment left.
		c.HasValidAttachments = c.HasValidAttachments ||
			slices.ContainsFunc(d.root.members, func(m member) bool { return strings.EqualFold(m.key, key) })
		if m, ok := d.root.fold(key); ok {
			if err := d.attachments(m.node, key, &c.ValidAttachments); err != nil {
				return err
			}
		}
	}
	return nil
}

// networkName reads `name` of the object n (clause C1).
func (d *document) networkName(n node, path string, v *string) *FileError {
	m, ok := n.fold("name")
	if !ok {
		return d.missing(n, path, "name", "a network needs one")
	}
	if err := d.str(m.node, join(path, "name"), v); err != nil {
		return err
	}
	if err := ValidName(*v); err != nil {
		return d.bad(CodeConfig, m.node.start, join(path, "name"), "%w", err)
	}
	return nil
}

// missing returns the error about a key that the object n lacks.
func (d *document) missing(n node, path, key, why string) *FileError {
	hint := ""
	if near, ok := spelling.Nearest(key, n.keys()); ok && near != key {
		m, _ := n.exact(near)
		line, column := position(d.src, m.at)
		hint = fmt.Sprintf(" (is %q at line %d, column %d meant to be it?)", near, line, column)
	}
	return d.bad(CodeConfig, n.start, join(path, key), "is missing: %s%s", why, hint)
}

// plugin reads the keys that the protocol defines for every plugin.
func (d *document) plugin(n node, path string, c *Conf) *FileError {
	if err := d.plugins(n, path, c); err != nil {
		return err
	}
	return d.wellKnown(n, path, c)
}

// plugins reads the types of the plugin and of its IPAM plugin.
func (d *document) plugins(n node, path string, c *Conf) *FileError {
	m, ok := n.fold("type")
	if !ok {
		return d.missing(n, path, "type", "it names the plugin")
	}
	if err := d.pluginType(m.node, join(path, "type"), &c.Type); err != nil {
		return err
	}
	if m, ok := n.fold("ipam"); ok {
		if m.node.kind != '{' {
			return d.shape(m.node, join(path, "ipam"), "an object")
		}
		if t, ok := m.node.fold("type"); ok && string(d.raw(t.node)) != `""` { // empty is the default: none
			if err := d.pluginType(t.node, join(path, "ipam.type"), &c.IPAMType); err != nil {
				return err
			}
		}
	}
	return nil
}

// wellKnown reads the keys that have the same meaning for every plugin.
func (d *document) wellKnown(n node, path string, c *Conf) *FileError {
	if m, ok := n.fold("capabilities"); ok {
		c.Capabilities = map[string]bool{}
		err := d.object(m.node, join(path, "capabilities"), func(key string, n node, path string) *FileError {
			var on bool
			err := d.boolean(n, path, &on)
			c.Capabilities[key] = on
			return err
		})
		if err != nil {
			return err
		}
	}
	if m, ok := n.fold("dns"); ok {
		c.DNS = &DNS{}
		return d.dns(m.node, join(path, "dns"), c.DNS)
	}
	return nil
}

func (d *document) pluginType(n node, path string, v *string) *FileError {
	if err := d.str(n, path, v); err != nil {
		return err
	}
	if err := ValidType(*v); err != nil {
		return d.bad(CodeConfig, n.start, path, "%w", err)
	}
	return nil
}

// attachments appends the list of valid attachments of GC to v. An entry that cannot be read is an error: if it were
// ignored, GC would remove the attachment that it names.
func (d *document) attachments(n node, path string, v *[]Attachment) *FileError {
	known := make(map[Attachment]bool, len(n.items))
	for _, a := range *v {
		known[a] = true
	}
	return d.each(n, path, "attachments", func(n node, path string) *FileError {
		if n.kind != '{' {
			return d.shape(n, path, "an object")
		}
		var a Attachment
		for _, f := range []struct {
			key string
			v   *string
		}{{"containerID", &a.ContainerID}, {"ifname", &a.IfName}} {
			m, ok := n.fold(f.key)
			if !ok {
				return d.missing(n, path, f.key, "an attachment has containerID and ifname")
			}
			if err := d.str(m.node, join(path, f.key), f.v); err != nil {
				return err
			}
			if *f.v == "" {
				return d.bad(CodeConfig, m.node.start, join(path, f.key), "is empty")
			}
		}
		if !known[a] {
			known[a] = true
			*v = append(*v, a)
		}
		return nil
	})
}
