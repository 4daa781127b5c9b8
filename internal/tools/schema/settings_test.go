package schema

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/calls"
)

// The schema of the settings takes what the plugins take, and refuses what they refuse by syntax.
func TestSettingsSchema(t *testing.T) {
	s := schemas(t)["fairlead"]
	for text, takes := range map[string]bool{
		"": true, "all": true, "off": true, "errors,journald": true, "file, 64M": true, "/var/log/x,1g": true,
		"loud": false, "all,": false, "calls.log": false, "10T": false,
	} {
		doc, err := json.Marshal(map[string]string{calls.Key: text})
		if err != nil {
			t.Fatal(err)
		}
		if err := valid(t, s, string(doc)); (err == nil) != takes {
			t.Errorf("%q: the schema says %v", text, err)
		}
		if _, err := calls.Parse(text); text != "" && (err == nil) != takes {
			t.Errorf("%q: the plugins say %v", text, err)
		}
	}
	if err := valid(t, s, `{"log": "all", "debugCommands": true}`); err != nil {
		t.Error(err)
	}
	if valid(t, s, `{"debugCommands": "yes"}`) == nil {
		t.Error("debugCommands that is no boolean is taken")
	}
	if valid(t, s, `{"logs": "all"}`) == nil {
		t.Error("an unknown key is taken")
	}
	if _, err := os.Stat(root + "/docs/schema/fairlead.schema.json"); err != nil {
		t.Error(err)
	}
}
