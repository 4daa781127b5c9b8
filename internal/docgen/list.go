package docgen

import (
	"github.com/fairlead-cni/fairlead/internal/command/cli/explain"
)

// listReference is what there is to say of the keys of a list itself, and of those that every plugin in it may have.
func listReference() explain.Reference {
	r := explain.Reference{
		Name:     "list",
		Synopsis: "the keys of a network configuration list, and the keys that every plugin has",
		Doc: "A network configuration list is a file NAME.conflist in /etc/cni/net.d. Runtimes sort the files by " +
			"name, so " +
			"names often begin with a number, such as 10-lan.conflist. `fairlead explain TYPE` describes the other " +
			"keys of a plugin, and those of ipam under the name of the IPAM plugin.",
	}
	for _, k := range [][3]string{
		{"cniVersion", "string",
			"Version of the CNI specification that the list uses, 0.1.0 to 1.1.0. A runtime refuses a version that " +
				"it does not know. Default: 0.1.0."},
		{"cniVersions", "list of string",
			"Further versions that the list can be used with. The runtime uses the newest one that it knows. " +
				"With \"1.0.0\" in cniVersion and \"1.1.0\" here, every runtime since 1.0.0 accepts the list, and " +
				"those that know 1.1.0 use STATUS and GC."},
		{"name", "string",
			"Name of the network. No other file on the host may have the same name. The name begins with a letter or " +
				"a digit; letters, digits, underscores, dots and dashes follow."},
		{"disableCheck", "true or false",
			"Runtimes do not call CHECK. Default: false."},
		{"disableGC", "true or false",
			"Runtimes do not call GC. Default: false."},
		{"loadOnlyInlinedPlugins", "true or false",
			"true: runtimes ignore the directory beside the file that has the name of the network. false: they " +
				"append the plugins of its *.conf files to the list. Default: false."},
		{"plugins", "list of object",
			"The plugins, in the order of ADD. The first one makes the interface, and the others add to it. DEL " +
				"calls them in reverse order."},
		{"plugins[].type", "string",
			"Name of the plugin. It is the name of its program in a plugin directory."},
		{"plugins[].capabilities", "object of true or false",
			"Values that the plugin gets from the runtime in runtimeConfig, such as portMappings, ipRanges, ips, " +
				"mac, bandwidth, dns and aliases. The runtime passes a value only to plugins that declare it, for " +
				"example {\"portMappings\": true}."},
		{"plugins[].runtimeConfig", "object",
			"Values of the capabilities. Only the runtime writes this key."},
		{"plugins[].args", "object",
			"Arguments for the plugin. args.cni has the arguments that plugins agree on, such as ips, mac and labels."},
		{"plugins[].ipam", "object",
			"How the container gets its addresses. Its keys are those of the IPAM plugin that ipam.type names."},
		{"plugins[].ipam.type", "string",
			"Name of the IPAM plugin: host-local, cluster, static, dhcp or another one."},
		{"plugins[].dns", "object",
			"DNS settings of the container, for the result: nameservers, domain, search and options, as in " +
				"resolv.conf(5). The runtime decides whether the container uses them."},
		{"plugins[].strict", "true or false",
			"Plugins of Fairlead refuse unknown keys, instead of warning about them. Default: false."},
		{"plugins[].prevResult", "object",
			"Result of the plugin before this one. Only the runtime writes this key."},
	} {
		r.Keys = append(r.Keys, explain.ReferenceKey{Path: k[0], Value: k[1], Doc: k[2]})
	}
	return r
}
