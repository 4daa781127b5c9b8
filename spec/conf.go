package spec

import "errors"

// A Conf is the configuration of one plugin: what the protocol says about it, and all of it.
type Conf struct {
	CNIVersion   Version // 0.1.0 where it is left out (clause V5)
	Name         string  // of the network
	Type         string  // of the plugin
	IPAMType     string
	Capabilities map[string]bool
	DNS          *DNS
	PrevResult   *Result

	ValidAttachments    []Attachment // GC: both keys in use, together
	HasValidAttachments bool         // GC: there was a list, maybe an empty one

	Object Object // everything, as it was written
}

// An Attachment is one interface of one container, as GC is told of it.
type Attachment struct {
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifname"`
}

// ParseConf reads what a plugin gets on stdin. Errors are of type *Error: code 6 for what is not JSON or
// of the wrong shape, with line and column; code 7 for a bad or missing name or type.
//
// A configuration of a version that is not Known is read as far as name and type, and is no error: it is
// for the plugin to refuse (clause V3). A prevResult that cannot be read gives the error and the rest of
// the configuration, for DEL goes on without it.
func ParseConf(b []byte) (*Conf, error) { return nil, errors.New("not yet") }
