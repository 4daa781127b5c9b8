package attached

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/calls"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/spelling"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
)

// NotAttached returns the error for a name that no container in list has.
func NotAttached(name string, list []attach.Cached) error {
	return app.Fail(app.ExitNotFound, Meant(name, list)+"`fairlead ls` lists the attachments. Containers without CNI, "+
		"such as Docker's, are not known here.", "container %q: %w", name, attach.ErrNotAttached)
}

// Meant returns a question that names the container in list, or the other word, that resembles name; "" if none does.
func Meant(name string, list []attach.Cached, others ...string) string {
	known := slices.Clone(others)
	for _, c := range list {
		pod := Name(c)
		known = append(known, pod, pod[strings.LastIndexByte(pod, '/')+1:], c.ContainerID, ShortID(c.ContainerID))
	}
	near, ok := spelling.Nearest(name, known)
	if !ok {
		return ""
	}
	return fmt.Sprintf("Did you mean %q? ", near)
}

// One returns the attachments of the one container called name: see [Find]. Of several containers, those whose network
// namespace is gone do not count, because a new container may have the name of an old one.
func One(name string, list []attach.Cached) ([]attach.Cached, error) {
	found := Find(name, list)
	if len(found) == 0 {
		return nil, NotAttached(name, list)
	}
	other := func(c attach.Cached) bool { return c.ContainerID != found[0].ContainerID }
	if !slices.ContainsFunc(found, other) {
		return found, nil
	}
	if living := slices.DeleteFunc(slices.Clone(found), IsGone); len(living) > 0 {
		found = living
	}
	if !slices.ContainsFunc(found, other) {
		return found, nil
	}
	var several []string
	for _, c := range found {
		several = append(several, ShortOwner(c))
	}
	return nil, app.Fail(app.ExitUsage, "Name one of them by its ID.", "%q may mean several containers:\n%s", name,
		strings.Join(several, "\n"))
}

// CompleteContainers completes IDs of containers, for a shell.
func CompleteContainers(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	list, _ := List("")
	var ids []string
	for _, c := range list {
		ids = append(ids, c.ContainerID)
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}

// LoopbackNetwork is the network by which containerd before 2.0 sets up lo of each pod.
const LoopbackNetwork = "cni-loopback"

// Hashed reports whether the ID of a container is only a hash of the path of its network namespace: see [ContainerID].
func Hashed(c attach.Cached) bool { return c.ContainerID == ContainerID(c.Netns) }

// Name is what people call the container of an attachment: see [calls.PodName]. If its ID is only a hash, Name returns
// the name of the network namespace.
func Name(c attach.Cached) string {
	if name := calls.PodName(c.Args); name != "" || !Hashed(c) {
		return name
	}
	if name := ShortNetns(c.Netns); !strings.Contains(name, "/") {
		return name
	}
	return ""
}

// ShortNetns is a network namespace as the commands are told it: by its name, where it has one.
func ShortNetns(path string) string {
	return strings.TrimPrefix(strings.TrimPrefix(path, "/var"), NetnsDir+"/")
}

// ShortID shortens a long hexadecimal ID to its first 12 digits, as runtimes do.
func ShortID(id string) string {
	const digits, long = 12, 32
	if len(id) < long || strings.Trim(id, "0123456789abcdef") != "" {
		return id
	}
	return id[:digits]
}

// ShortOwner is an attachment as people see it: NETWORK/ID/INTERFACE, and the name of the container that ls prints.
func ShortOwner(c attach.Cached) string {
	o := c.Owner()
	o.ContainerID = ShortID(o.ContainerID)
	if name := Name(c); name != "" && name != c.ContainerID {
		return o.String() + " (" + name + ")"
	}
	return o.String()
}

// ShortOwners returns ShortOwner for owners: it reads the cache once.
func ShortOwners() func(spec.Owner) string {
	list, _ := List("")
	short := map[spec.Owner]string{}
	for _, c := range list {
		short[c.Owner()] = ShortOwner(c)
	}
	return func(o spec.Owner) string { return cmp.Or(short[o], o.String()) }
}

// Named returns text with NETWORK/ID/INTERFACE of each known attachment written as by ShortOwner.
func Named(text string) string {
	list, _ := List("")
	for _, c := range list {
		long, short := c.Owner().String(), ShortOwner(c)
		if long == short || !strings.Contains(text, long) {
			continue
		}
		parts := strings.Split(text, long)
		text = parts[0]
		for _, rest := range parts[1:] {
			extra, same := strings.CutPrefix(short, long)
			if strings.IndexFunc(rest, inWord) == 0 || // eth1 inside eth10 does not count
				same && strings.HasPrefix(rest, extra) { // the name follows already
				text += long + rest
			} else {
				text += short + rest
			}
		}
	}
	return text
}

func inWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) || r == '-' || r == '_' }

// Find returns the attachments of the container called name: exact matches, else those whose ID begins with name.
func Find(name string, list []attach.Cached) (found []attach.Cached) {
	if name == "" {
		return nil
	}
	path, err := NetnsPath(name)
	exact := func(c attach.Cached) bool {
		return name == c.ContainerID || name == Name(c) || name == c.Netns || ofOwner(name, c, true) ||
			err == nil && c.Netns != "" && SamePath(path, c.Netns)
	}
	begins := func(c attach.Cached) bool { return strings.HasPrefix(c.ContainerID, name) || ofOwner(name, c, false) }
	for _, means := range []func(attach.Cached) bool{exact, begins} {
		for _, c := range list {
			if means(c) {
				found = append(found, c)
			}
		}
		if len(found) > 0 {
			break
		}
	}
	return found
}

// ofOwner reports whether name is NETWORK/ID or NETWORK/ID/INTERFACE of c. Unless exact, the ID may be shortened.
func ofOwner(name string, c attach.Cached, exact bool) bool {
	rest, ok := strings.CutPrefix(name, c.Network+"/")
	id, ifName, given := strings.Cut(rest, "/")
	if !ok || id == "" || given && ifName != c.IfName {
		return false
	}
	return id == c.ContainerID || !exact && strings.HasPrefix(c.ContainerID, id)
}
