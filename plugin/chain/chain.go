// Package chain runs a whole list of plugins in one process, which costs a fraction of one process for each plugin.
//
// A runtime sees a list of one plugin. Each plugin inside gets what it would get by itself, in order: its
// configuration, the runtime's arguments that its own capabilities name, and the result of the plugin before it. The
// state on the host and the result are the same as those of a list of the same plugins: attachments of one form can be
// checked and deleted by the other. `fairlead net chain FILE` rewrites a list, and `fairlead net chain --undo FILE`
// reverses it.
//
// If CNI_PATH has a plugin from another program, that program is executed in its place. If ADD of one plugin fails,
// the plugins before it are rolled back. DEL runs backwards and continues after errors. Each error names its plugin:
// plugins[2] (firewall).
package chain

import "github.com/fairlead-cni/fairlead/sdk"

// Plugin is the chain plugin.
var Plugin = sdk.Chain("chain", "runs a whole list of plugins in one process",
	func(c conf) []sdk.Inner { return c.Plugins })

type conf struct {
	// The plugins in order, each with the configuration that it would have in the list. Each capability of a plugin
	// must also be in capabilities beside this key, else the runtime does not pass the value; STATUS reports a missing
	// one. None of the plugins can be a chain.
	Plugins []sdk.Inner `json:"plugins"`
}
