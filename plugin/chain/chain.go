// Package chain runs a whole list of plugins in one process, which costs a fraction of a process for each.
//
// A runtime sees a list of one plugin. Each plugin inside is given what it would be given by itself, in order: its
// configuration, of the runtime's arguments those that its own capabilities name, and the result of the plugin
// before. What comes of it, on the host and as the result, is what the same plugins make as a list: attachments of
// one form can be checked and deleted by the other. `fairlead net chain FILE` rewrites a list, and `fairlead net
// chain --undo FILE` writes it out again.
//
// A plugin that CNI_PATH has from elsewhere is executed in its place. If ADD of one fails, those before it are taken
// back. DEL goes backwards and on past errors, and each error says whose it is: plugins[2] (firewall).
package chain

import "github.com/fairlead-cni/fairlead/sdk"

// Plugin is the chain plugin.
var Plugin = sdk.Chain("chain", "runs a whole list of plugins in one process",
	func(c conf) []sdk.Inner { return c.Plugins })

type conf struct {
	// The plugins in order, each as it would stand in the list, capabilities included. Those of all of them have to
	// stand beside this key too, else the runtime does not give them; STATUS says so. None can be a chain.
	Plugins []sdk.Inner `json:"plugins"`
}
