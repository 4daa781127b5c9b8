package spec

import "errors"

// A List is the configuration of one network: its plugins in order.
type List struct {
	CNIVersion  Version   // 0.1.0 where it is left out
	CNIVersions []Version // as written
	Name        string

	DisableCheck, DisableGC, LoadOnlyInlinedPlugins bool

	Plugins  []*Conf // Name and CNIVersion are the list's (clause C4); Object is as it was written
	Raw      []byte  // the main file (a single configuration as a list of one), for the cache
	File     string  // where it was read; empty if nowhere
	Warnings []error // *FileError: what is odd, and no error
}

// Capabilities are all capabilities that some plugin of the list declares.
func (l *List) Capabilities() map[string]bool { return nil }

// ParseList reads a list, or a single configuration as a list of one (clause C5). Its errors are of type
// *FileError and wrap an *Error.
func ParseList(b []byte) (*List, error) { return nil, errors.New("not yet") }

// Select is the version to run the list in: the highest of cniVersion and cniVersions that the protocol
// has and that all of speaks have (clause V10). None is an error with code 1.
func Select(l *List, speaks ...[]Version) (Version, error) { return "", errors.New("not yet") }
