// Package arch holds the shape of the tree as tests: which package may import which, with a reason for
// each arrow that is forbidden, and the rules that a reviewer would otherwise have to remember. Its
// tables are docs/tree.md in a form that fails.
package arch

import (
	"path"
	"strings"
)

// Module is the path of this module.
const Module = "github.com/fairlead-cni/fairlead"

// A row says what the packages that match a pattern may import of this module, and why nothing else.
// Patterns are those of path.Match, relative to the module.
type row struct {
	pkg string
	may []string
	why map[string]string // forbidden target → reason; "*" for all that have none of their own
}

// rows is the import table. The first row that matches a package counts.
func rows() []row {
	room := map[string]string{
		"sdk":        "a kind is described by its fields, not by the request of a plugin",
		"resource/*": "arrows between the rooms of resource go downwards only",
		"*":          "a kind compares fields with the kernel",
	}
	// kinds is what a room of resource may import: the common words, and the rooms below it.
	kinds := func(below ...string) []string {
		may := []string{"resource", "plan", "kernel", "kernel/*", "spec"}
		for _, b := range below {
			may = append(may, "resource/"+b)
		}
		return may
	}
	below := map[string]string{
		"ipam/*":     "the command looks at leases, wherever an allocator keeps them",
		"plugin/*":   "the command knows the list of plugins, not their insides",
		"resource/*": "the command prints plans; it makes none",
		"cli/*":      "arrows between the rooms of the command go downwards only",
		"*":          "the command is a user of the runtime's side like any other",
	}
	// command is what a room of the command may import, and networks what one that knows networks may.
	command := func(more ...string) []string {
		return append([]string{"cli/app", "cli/term", "attach", "kernel", "kernel/*", "spec"}, more...)
	}
	networks := func(more ...string) []string {
		return append(command("cli/attached", "cli/netconf", "plugin", "sdk"), more...)
	}
	const mechanism = "kernel knows mechanisms; what should exist is said above it"
	mechanisms := map[string]string{"kernel/*": "arrows between the mechanisms go downwards only", "*": mechanism}
	// door is what a mechanism of kernel may import: namespaces and their sockets, and the mechanisms below it.
	door := func(below ...string) []string {
		may := []string{"kernel", "kernel/netlink", "spec"}
		for _, b := range below {
			may = append(may, "kernel/"+b)
		}
		return may
	}
	return append(leafRows(), []row{
		{"spec", nil, map[string]string{
			"*": "spec is CNI as data: it can be lifted out and read without knowing anything of ours",
		}},
		{"invoke", []string{"spec"}, map[string]string{
			"attach": "running one plugin once knows nothing of lists and of attachments",
			"kernel": "the runtime's side never touches the network itself: plugins do",
			"*":      "invoke is a program and its environment, nothing more",
		}},
		{"attach", []string{"spec", "invoke"}, map[string]string{
			"kernel": "the runtime's side never touches the network itself: plugins do",
			"sdk":    "attach runs any plugin, ours in no other way than another's",
			"plugin": "attach runs any plugin, ours in no other way than another's",
			"*":      "attach is the protocol's runtime side: a program that links it gets nothing else",
		}},
		{"kernel", []string{"kernel/netlink", "kernel/record", "spec"}, map[string]string{
			"plan":     mechanism,
			"resource": mechanism,
			"kernel/*": "what is done in a namespace is above it",
			"*":        "kernel is the bottom of its column",
		}},
		{"kernel/netlink", nil, map[string]string{"*": "a socket and attributes are of no protocol"}},
		{"kernel/machine", nil, map[string]string{"*": "what a machine is told by is in files of its own"}},
		{"kernel/identity", []string{"kernel/machine", "spec"}, map[string]string{
			"*": "an identity follows from the owner alone",
		}},
		{"kernel/record", []string{"kernel/identity", "spec"}, map[string]string{
			"*": "a record is a file; what is in it is said by who writes it",
		}},
		{"kernel/rtnl", door("identity"), mechanisms},
		{"kernel/procsys", door(), mechanisms},
		{"kernel/sockdiag", door(), mechanisms},
		{"kernel/tc", door("rtnl"), mechanisms},
		{"kernel/tap", door("rtnl"), mechanisms},
		{"kernel/ethtool", door("rtnl"), mechanisms},
		{"kernel/packet", door("rtnl"), mechanisms},
		{"kernel/conntrack", door("rtnl", "procsys"), mechanisms},
		{"kernel/nft", door("identity", "machine", "record"), mechanisms},
		{"kernel/xtables", door("nft"), mechanisms},
		{"kernel/foreign", door("nft", "xtables"), mechanisms},
		{"kernel/kerneltest", []string{"kernel", "internal/nstest"}, map[string]string{
			"*": "it opens namespaces for tests, and nothing else",
		}},
		{"calls", nil, map[string]string{
			"*": "a line about a call is text in a file: who writes it and who reads it know the rest",
		}},
		{"packetfilter", []string{"kernel", "kernel/*"}, map[string]string{
			"*": "what the rules of others do with a packet follows from these rules alone",
		}},
		{"trace", []string{"kernel", "kernel/*", "packetfilter"}, map[string]string{
			"*": "the way of a packet follows from what the kernel says alone; containers are told by the command",
		}},
		{"plan", []string{"kernel", "kernel/identity", "spec"}, map[string]string{
			"*": "a plan is resources in order and nothing else",
		}},
		{"engine", []string{"plan", "kernel", "kernel/identity", "spec"}, map[string]string{
			"resource": "the engine knows no kind: a condition for a kind in it would be the end of it",
			"*":        "the engine is resources in order and nothing else",
		}},
		{"resource", []string{"plan", "kernel", "kernel/*", "spec"}, map[string]string{
			"sdk":  "a kind is described by its fields, not by the request of a plugin",
			"ipam": "a kind is told addresses; where they come from is not its business",
			"*":    "a kind compares fields with the kernel",
		}},
		{"ovsdb", nil, map[string]string{
			"*": "a protocol is messages on a socket; what stands in the database is said above it",
		}},
		{"resource/ovs", []string{"resource", "plan", "kernel", "kernel/*", "ovsdb", "spec"}, map[string]string{
			"*": "a kind compares rows with a description",
		}},
		{"resource/link", kinds("hostdev", "sysctl"), room},
		{"resource/link/linktest", kinds("link"), map[string]string{"*": "it makes links for tests, and nothing else"}},
		{"resource/addr", kinds("link"), room},
		{"resource/shape", kinds("link"), room},
		{"resource/routing", kinds("link", "addr"), room},
		{"resource/filter/filtertest", append(kinds("filter", "filter/*"), "internal/contract", "internal/nstest"),
			map[string]string{"*": "it makes hosts and resources for tests, and nothing else"}},
		{"resource/filter/iptables", kinds("filter"), map[string]string{
			"*": "what the iptables backends share knows none of them",
		}},
		// The prefixes of all nodes are too many for a plan, and other ones a minute later.
		{"resource/filter/masquerade", append(kinds("filter", "filter/iptables"), "ipam/grant"), room},
		{"resource/filter/*", kinds("filter", "filter/iptables"), map[string]string{
			"resource/filter/*": "the rooms of filter meet in what they share, and nowhere else",
			"*":                 "a kind compares fields with the kernel",
		}},
		{"resource/overlay", kinds("filter"), room},
		{"resource/network", kinds("link", "addr", "filter/policy"), room},
		{"resource/reference", kinds("filter", "filter/*"), room},
		{"resource/tune", kinds("link", "addr", "filter/spoof", "sysctl"), room},
		{"resource/*", kinds(), room},
		{"ipam", []string{"spec"}, map[string]string{
			"kernel": "address arithmetic runs anywhere, in a test without a kernel too",
			"*":      "address management knows ranges, leases and owners",
		}},
		{"ipam/grant", []string{"spec"}, map[string]string{
			"*": "an agent of any source of addresses writes the file, whatever else it is made of",
		}},
		{"agentstatus", []string{"ipam/grant"}, map[string]string{
			"*": "what an agent says is a document, whatever the agent is made of",
		}},
		{"ipam/sticky", []string{"ipam/disk", "sdk", "spec"}, map[string]string{
			"*": "it is a key of the allocators of ours, and what it says to their store",
		}},
		{"ipam/*", []string{"ipam", "kernel/record", "spec"}, map[string]string{
			"kernel": "a store is files or a service; the network's state is no part of it",
			"*":      "a store knows leases, and waits for locks as all others do",
		}},
		{"dhcp", []string{"ipam", "kernel", "kernel/*", "spec"}, map[string]string{
			"*": "dhcp is what a lease is, of every server and for every program that keeps it",
		}},
		// The daemon keeps a lease's addresses on the link as an interface plugin put them there.
		{"dhcp/daemon", []string{"dhcp", "dhcp/*", "kernel", "kernel/*", "resource", "resource/*", "plan",
			"spec"},
			map[string]string{
				"sdk": "the daemon serves plugins, also those of others, by the protocol of its socket",
				"*":   "the daemon keeps leases, whatever asks for them",
			}},
		{"dhcp/*", []string{"dhcp", "kernel", "kernel/*", "spec"}, map[string]string{
			"*": "a protocol is messages on a link",
		}},
		{"nameserver", []string{"resource/names", "kernel", "kernel/*", "spec"}, map[string]string{
			"plugin": "the server answers from records, of whichever plugin",
			"*":      "the server answers from records",
		}},
		{"sdk", []string{"spec", "invoke", "calls", "engine", "plan", "resource", "resource/*", "resource/filter/*",
			"kernel", "kernel/*", "ipam", "extra", "restore", "wants"},
			map[string]string{
				"attach": "a plugin is run; it runs only its delegates, through invoke",
				"plugin": "the author's side knows no plugin: it would be for ours alone",
				"*":      "sdk is what every plugin author links",
			}},
		{"extra", []string{"invoke", "resource", "restore", "spec"}, map[string]string{
			"sdk": "the one who asks and the one who answers have the documents in common",
			"*":   "it is documents, and how they are asked for",
		}},
		{"wants", []string{"resource", "spec"}, map[string]string{
			"*": "what a key takes is said of its text, whichever plugin has it",
		}},
		{"keys", []string{"sdk", "plan", "resource", "resource/*", "resource/filter/*", "spec"}, map[string]string{
			"*": "a key says what should exist, never how",
		}},
		{"plugin", []string{"plugin/*", "sdk"}, map[string]string{
			"*": "plugin is the list of ours, and nothing happens in it",
		}},
		{"plugin/*", []string{"keys", "sdk", "plan", "resource", "resource/*", "resource/filter/*", "ipam", "ipam/*",
			"dhcp", "dhcp/rpc", "spec"},
			map[string]string{
				"kernel":   "a plugin says what should exist, never how",
				"kernel/*": "a plugin says what should exist, never how",
				"dhcp/*":   "the plugin asks the daemon, and speaks to no server itself",
				"plugin/*": "a plugin that needs another delegates to it, by the protocol (clause I1)",
				"invoke":   "delegation is the sdk's",
				"*":        "a plugin file is its essence",
			}},
		// It plans with plugins as CHECK does, and runs none.
		{"repair", []string{"attach", "engine", "extra", "sdk", "plan", "resource", "resource/*", "resource/filter/*",
			"ipam", "kernel", "kernel/*", "spec", "restore"},
			map[string]string{
				"plugin": "who repairs says which plugins are his",
				"*":      "a repair is the plans of what the runtime's side remembers",
			}},
		{"cli/term", []string{"kernel", "kernel/rtnl"}, map[string]string{
			"*": "what is printed is text, whatever it is about",
		}},
		{"cli/app", []string{"cli/term", "spec"}, map[string]string{
			"*": "a run of the command is streams, an exit status and a context",
		}},
		{"cli/resolv", []string{"spec"}, map[string]string{
			"*": "resolv.conf is text made of DNS settings",
		}},
		{"cli/attached", command("calls", "sdk", "restore"), below},
		{"cli/netconf", command("cli/attached", "calls", "extra", "invoke", "ipam", "plan", "plugin", "resource",
			"sdk"), below},
		{"cli/snapshot", networks("ipam", "repair", "restore"), below},
		{"cli/target", networks("cli/snapshot", "extra", "invoke", "ipam", "plan", "resource"), below},
		{"cli/advice", networks("cli/target", "invoke", "ipam", "repair", "trace"), below},
		{"cli/validate", networks("cli/target", "resource"), below},
		{"cli/calllog", networks("calls"), below},
		{"cli/cluster", networks("agentstatus", "ipam", "ipam/grant", "resource/overlay"), below},
		{"cli/dhcp", networks("cli/snapshot", "dhcp", "dhcp/rpc", "dhcp/daemon", "restore"), below},
		{"cli/ipam", networks("ipam"), below},
		{"cli/install", networks("cli/validate", "install"), below},
		{"cli/networks", networks("cli/snapshot", "cli/target", "cli/validate"), below},
		{"cli/scaffold", networks(), below},
		{"cli/metrics", networks("cli/calllog", "cli/snapshot", "calls", "dhcp/daemon", "ipam", "repair"), below},
		{"cli/repair", networks("cli/advice", "cli/metrics", "cli/snapshot", "cli/target", "repair"), below},
		{"cli/run", networks("cli/advice", "cli/resolv", "cli/snapshot", "cli/target", "hide", "invoke"),
			below},
		{"cli/demo", networks("cli/resolv", "cli/run"), below},
		{"cli/doctor", networks("cli/advice", "cli/cluster", "cli/dhcp", "cli/resolv", "cli/snapshot", "dhcp/rpc",
			"invoke", "ipam", "ipam/grant", "packetfilter", "repair", "resource/overlay", "trace"), below},
		{"cli/explain", networks("cli/advice", "cli/doctor", "calls"), below},
		{"cli/inspect", networks("cli/calllog", "cli/dhcp", "cli/doctor", "cli/ipam", "calls", "dhcp/rpc", "repair"),
			below},
		{"cli/graph", networks("cli/doctor", "cli/inspect", "cli/snapshot", "graph", "resource"), below},
		{"cli/trace", networks("cli/doctor", "agentstatus", "trace"), below},
		{"cli/support", networks("cli/advice", "cli/calllog", "cli/doctor", "cli/inspect", "cli/snapshot", "calls",
			"dhcp", "dhcp/rpc", "packetfilter", "support"), below},
		{"cli", networks("cli/*", "restore", "invoke", "repair", "dhcp/daemon",
			"nameserver"), map[string]string{
			"*": "the command is the tree of its rooms' commands",
		}},
		{"support", nil, map[string]string{
			"*": "it hides what must not be passed on, wherever that came from",
		}},
		{"graph", nil, map[string]string{
			"*": "a picture is of what its caller has found; it is drawn in a test without a host",
		}},
		{"install", []string{"spec"}, map[string]string{
			"*": "files are put into a directory, whatever is in them",
		}},
		{"cmd/cni", []string{"plugin", "sdk", "dhcp/daemon"}, map[string]string{
			"cli": "the plugins start without what a command line costs",
			"*":   "main decides who is called, and does nothing itself",
		}},
		{"cmd/fairlead-conformance", []string{"conformance"}, map[string]string{
			"*": "it tests ours in no other way than another's",
		}},
		{"cmd/*", []string{"cli", "plugin", "sdk", "spec", "dhcp/daemon"}, map[string]string{
			"*": "main decides who is called, and does nothing itself",
		}},
		{"conformance", []string{"spec", "invoke", "kernel", "kernel/rtnl", "internal/nstest"}, map[string]string{
			"*": "conformance is a black box: it must be fair to anybody's plugin",
		}},
		{"bench", []string{"internal/nstest"}, map[string]string{
			"*": "both sides are run as whole processes, by the same code",
		}},
		{"bench/floor", nil, map[string]string{
			"*": "the floor is what the kernel asks for, without anything of ours",
		}},
		{"internal/nstest", []string{"hide"}, map[string]string{
			"*": "what makes a test's host must not depend on what is tested in it",
		}},
		{"internal/contract", []string{"internal/nstest", "engine", "resource", "plan", "kernel", "kernel/*", "spec"},
			map[string]string{
				"*": "the contracts are those of plan, and know no kind",
			}},
		{"sdk/sdktest", []string{"sdk", "extra", "invoke", "plan", "resource", "kernel", "kernel/*", "spec",
			"internal/nstest", "internal/contract", "internal/txtar"},
			map[string]string{
				"plugin": "who writes a plugin says which others its list needs",
				"*":      "it holds any plugin to what ours are held to",
			}},
		{"internal/docgen", []string{"calls", "cli", "cli/*", "internal/txtar", "plugin", "sdk", "spec", "wants"},
			map[string]string{
				"*": "documents are made from the list of plugins, the command line and source text",
			}},
		{"restore", []string{"plan", "resource", "kernel", "kernel/*", "spec"}, map[string]string{
			"*": "it is what sdk and repair have in common",
		}},
		{"hide", nil, map[string]string{
			"*": "it mounts over files in the namespace of its caller, whatever these are",
		}},
		{"internal/*", nil, map[string]string{
			"*": "what watches over the tree is no part of it",
		}},
	}...)
}

// A restriction says who may import something from outside this module, and why no other package.
type restriction struct {
	imp string   // import path; its subpackages are meant too
	by  []string // patterns, as in row
	why string
}

// outside is every import from outside the standard library, and those of the standard library that
// are kept to some packages. A new module needs a row here.
func outside() []restriction {
	return []restriction{
		{"golang.org/x/sys/unix", []string{
			"kernel", "kernel/*", "resource", "resource/*", "resource/filter/*",
			"invoke",       // process groups and signals of a plugin that hangs
			"attach",       // flock on an attachment
			"repair",       // numbers of nf_tables' events
			"packetfilter", // numbers of nf_tables' expressions
			"cli/*",        // a command in namespaces of its own, terminals, files that are replaced
			"ipam/disk",    // flock, as the reference takes it
			"install",      // flock, extended attributes
			"dhcp/daemon",  // flock, the clock that cannot be set
			"nameserver",   // inotify, sockets of addresses to come
			"bench",        // whole processes
			"bench/floor",  // what the kernel asks for at least
			"hide",         // mounts
			"internal/**",  // makes hosts
		}, "system calls belong to kernel, but for locks and processes where these are the matter itself"},
		{"github.com/godbus/dbus", []string{"resource/filter/forward"},
			"firewalld is the one service that is asked by D-Bus"},
		{"github.com/insomniacslk/dhcp", []string{"dhcp/v4", "dhcp/v6"},
			"who keeps a lease knows it as package dhcp has it"},
		{"github.com/miekg/dns", []string{"nameserver"}, "only the server speaks DNS, in the command and in no plugin"},
		{"github.com/spf13/cobra", []string{"cli", "cli/*", "internal/docgen"}, "only the command has a command line"},
		{"github.com/spf13/pflag", []string{"cli/app", "internal/docgen"},
			"an error names the flag with a wrong value, and a manual page lists the flags"},
		{"testing", []string{"internal/nstest", "internal/contract", "resource/link/linktest", "sdk/sdktest",
			"kernel/kerneltest", "resource/filter/filtertest", "conformance"}, "a product has no tests in it"},
	}
}

// heavy are packages whose initialisation or size every call of a plugin would pay for, or that it has no business
// with.
func heavy() map[string]string {
	return map[string]string{
		"net/http":               "a server at the start of every call",
		"net/rpc":                "0.7 ms of start-up (it brings net/http and templates)",
		"text/template":          "templates, and it keeps the linker from dropping methods",
		"html/template":          "templates, and it keeps the linker from dropping methods",
		"github.com/spf13/cobra": "a command line, a tenth of start-up",
		"github.com/miekg/dns":   "DNS messages, 0.15 ms of start-up and 0.9 MB",
		"testing":                "test code in the product",
		Module + "/trace":        "it follows packets for a person, and links the evaluator",
		Module + "/packetfilter": "an ADD is not refused for what it foresees, and a plugin does not foresee",
	}
}

// clusterLibraries are what fairlead-agent is made of.
func clusterLibraries() []string {
	return []string{Module + "/cluster", "k8s.io", "sigs.k8s.io", "github.com/prometheus", "go.etcd.io",
		"google.golang.org/grpc"}
}

// match is path.Match; a pattern that ends in ** means all that is below.
func match(pattern, name string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "**"); ok {
		return strings.HasPrefix(name, prefix)
	}
	ok, err := path.Match(pattern, name)
	return err == nil && ok
}

func matchAny(patterns []string, name string) bool {
	for _, p := range patterns {
		if match(p, name) {
			return true
		}
	}
	return false
}
