package docgen

import "github.com/fairlead-cni/fairlead/cli"

// listReference is what there is to say of the keys of a list itself, and of those that every plugin in it may have.
func listReference() cli.Reference {
	r := cli.Reference{
		Name:     "list",
		Synopsis: "the keys of a network configuration list, and those that each of its plugins may have",
		Doc: "A list is a file NAME.conflist in /etc/cni/net.d. Runtimes take the files by their names, so that a number " +
			"often comes first, as in 10-lan.conflist. What else a plugin reads is explained under its own name, and of ipam " +
			"under that of its type.",
	}
	for _, k := range [][3]string{
		{"cniVersion", "string",
			"the version of the specification, 0.1.0 to 1.1.0; runtimes refuse one that they do not know; default" +
				" 0.1.0"},
		{"cniVersions", "list of string",
			"more versions that the list can be used in, of which a runtime takes the newest that it knows; with " +
				"\"1.0.0\" in cniVersion and \"1.1.0\" here, no runtime refuses the list, and those that know 1.1.0 " +
				"have STATUS and GC"},
		{"name", "string",
			"the network's name, which no other file on the host has: a letter or a digit, then letters, digits, " +
				"underscores, dots and dashes"},
		{"disableCheck", "true or false",
			"runtimes leave CHECK out; default false"},
		{"disableGC", "true or false",
			"runtimes leave GC out; default false"},
		{"loadOnlyInlinedPlugins", "true or false",
			"runtimes leave the folder alone that has the network's name and stands beside the file; else the " +
				"plugins of its *.conf files come after those of the list; default false"},
		{"plugins", "list of object",
			"the plugins, in the order of ADD; the first one makes the interface, the others add to it, and DEL " +
				"goes backwards"},
		{"plugins[].type", "string",
			"name of the plugin, which is that of a program in a plugin directory"},
		{"plugins[].capabilities", "object of true or false",
			"what the plugin gets of the runtime in runtimeConfig, such as portMappings, ipRanges, ips, mac, " +
				"bandwidth, dns and aliases; a value that no plugin declares is given to none"},
		{"plugins[].runtimeConfig", "object",
			"the values of the capabilities; the runtime writes it, and a file has none"},
		{"plugins[].args", "object",
			"arguments for the plugin; args.cni has those with a meaning that plugins agree on, such as ips, mac " +
				"and labels"},
		{"plugins[].ipam", "object",
			"who gives the container its addresses, and from where; its keys are those of the plugin that " +
				"ipam.type names"},
		{"plugins[].ipam.type", "string",
			"the IPAM plugin: host-local, static, dhcp or another one"},
		{"plugins[].dns", "object",
			"of the container, for the result: nameservers, domain, search and options, as in resolv.conf; " +
				"whether the container uses it is the runtime's choice"},
		{"plugins[].strict", "true or false",
			"of Fairlead's plugins: refuse unknown keys, of which there is a warning otherwise; default false"},
		{"plugins[].prevResult", "object",
			"the result of the plugin before; the runtime writes it, and a file has none"},
	} {
		r.Keys = append(r.Keys, cli.ReferenceKey{Path: k[0], Value: k[1], Doc: k[2]})
	}
	return r
}
