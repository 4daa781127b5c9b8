// Package extra has the two verbs that Fairlead has beside CNI's, by which `fairlead plan` and `fairlead repair` ask a
// plugin of another program what they know of Fairlead's own: their documents, and how they are asked. A plugin gets
// them only if it offered them, in its answer to a VERSION whose stdin has the member "fairlead". So another runtime
// gets the answer of the specification, and another plugin no verb that it does not know. docs/plugin-author.md shows
// the documents.
package extra

import (
	"encoding/json"

	"github.com/fairlead-cni/fairlead/internal/restore"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// The values of CNI_COMMAND.
const (
	VerbPlan   = "FAIRLEAD_PLAN"
	VerbRepair = "FAIRLEAD_REPAIR"
)

// An Offer is the part of the answer to VERSION that says more of a plugin than CNI does: for each extra verb the
// version of its documents, or 0 if the plugin does not offer it.
type Offer struct {
	// version of its program, or "" if that does not name one state of the source
	Release string `json:"release,omitempty"`

	Plan   int `json:"plan,omitempty"`
	Repair int `json:"repair,omitempty"`
}

// A PlanRequest is the standard input of FAIRLEAD_PLAN. The environment is the same as for ADD; the namespace need not
// exist.
type PlanRequest struct {
	Conf      json.RawMessage     `json:"conf"`                // the stdin of ADD
	IPAM      *spec.Result        `json:"ipam,omitempty"`      // what the IPAM plugin might answer
	HostLinks []resource.HostLink `json:"hostLinks,omitempty"` // that the plugins before make on the host
}

// A PlanAnswer describes what ADD would do.
type PlanAnswer struct {
	Resources []string            `json:"resources"`           // in the words of ip(8) and nft(8), in order of creation
	HostLinks []resource.HostLink `json:"hostLinks,omitempty"` // those of the request, and the plugin's own
	Result    *spec.Result        `json:"result"`              // what the next plugin would get as prevResult
	Notes     []Note              `json:"notes,omitempty"`
	Unmet     []string            `json:"unmet,omitempty"` // what it requires of the host, and the host does not have now
}

// A RepairRequest is the standard input of FAIRLEAD_REPAIR. The environment is the same as for CHECK.
type RepairRequest struct {
	Conf     json.RawMessage `json:"conf"`               // the stdin of CHECK
	DryRun   bool            `json:"dryRun,omitempty"`   // only look
	Firewall bool            `json:"firewall,omitempty"` // only rules of the packet filter
	// only rules that keep packets out: repair asks for these first
	Closes bool `json:"closes,omitempty"`
}

// A RepairAnswer lists what was repaired, and what is still wrong.
type RepairAnswer struct {
	Plan     []restore.Planned `json:"plan"`               // what there should be
	Repaired []string          `json:"repaired,omitempty"` // what was made, in the words of ip(8) and nft(8)

	// what is wrong and was not fixed; in a dry run, Repair says what a repair would fix
	Wrong spec.Differences `json:"wrong,omitempty"`
}

// A Note is a warning about a configuration that is used nevertheless.
type Note struct {
	Unknown string `json:"unknown,omitempty"` // the path of a key that is not read; empty: it is another thing
	Text    string `json:"text"`
}
