// Package debug records what a runtime asks of a list. For each ADD, CHECK, DEL, GC and STATUS it writes the
// environment, the standard input, the result or the error, and the time. The previous result is passed on unchanged.
//
// The plugin makes no call fail: if it cannot write the file, or a command that may run fails, it warns on stderr, so
// that the container keeps its network. Its place in the list decides what it sees: as the last plugin, the result of
// all others. Without a key it does nothing.
//
// Standard input may contain secrets, so only root can read the file that the plugin makes.
//
// Commands and hooks run as root, and the file is written as root. So commands run, and files other than
// /var/log/cni-* are written, only if the administrator of the node allows it, with {"debugCommands": true} in
// /etc/cni/fairlead.json. Otherwise ADD and STATUS of such a configuration fail, and CHECK, DEL and GC skip both with a
// warning. The plugin does not undo what commands change.
package debug

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// Plugin is the debug plugin.
var Plugin = sdk.Journaled(
	sdk.Chained("debug", "writes each call to a file, or hands it to a command", want, nil), conf.journal)

// A Format is how a call is written down.
type Format string

// The two Formats: lines as the reference's plugin writes them, with what it leaves out, and a document a line.
const (
	Text Format = "text"
	JSON Format = "json"
)

// An argv is a program and its arguments.
type argv []string

type conf struct {
	// Absolute path of the file that each call is appended to, by one write: /var/log/cni-NAME, or any other where the
	// node allows it. Default: none, no file is written.
	CNIOutput string `json:"cniOutput" want:"/^/[^\\x00]*$/" says:"the absolute path of a file, such as /var/log/cni-calls"`
	// Format of the calls in the file. text: the lines of the reference plugin, followed by Time, Result or Error, and
	// Took. json: one object on a line, with time, took, env (the variables that begin with CNI_), stdin, and result or
	// error. Default: text.
	Format Format `json:"format" want:"text|json" says:"\"text\" or \"json\""`
	// Size of the file in bytes, at least 4096. A call that would exceed it first renames the file to the same name
	// with .1 and replaces that file. 0: no limit. Default: 10485760 (10 MiB).
	MaxSize *int64 `json:"maxSize" want:"0|4096..9223372036854775807" says:"at least 4096 bytes, or 0 for no bound"`
	// Program and its arguments, executed on the host for each call. Its standard input is the call, in the format of
	// the file. Default: none.
	Command argv `json:"command"`
	// Commands, each a program and its arguments, that ADD executes in the container's network namespace, after the
	// plugins before this one. They get the environment of the call. Default: none.
	AddHooks []argv `json:"addHooks"`
	// Commands that DEL executes in the container's network namespace, before the plugins before this one. They are
	// skipped if the namespace no longer exists. Default: none.
	DelHooks []argv `json:"delHooks"`
	// Commands that CHECK executes in the container's network namespace. Default: none.
	CheckHooks []argv `json:"checkHooks"`
	// Commands that GC executes on the host. Default: none.
	GCHooks []argv `json:"gcHooks"`
	// Commands that STATUS executes on the host. Default: none.
	StatusHooks []argv `json:"statusHooks"`
	// Seconds that all commands of one call may take together, 1 to 60. Then they get SIGTERM, and two seconds later
	// SIGKILL. Default: 5.
	Timeout int `json:"timeout" want:"0|1..60 seconds" says:"1 to 60 seconds, or 0 for the default, 5"`
}

const (
	defaultSize    = 10 << 20
	defaultTimeout = 5
)

func (c conf) hooks() map[string][]argv {
	return map[string][]argv{
		"ADD": c.AddHooks, "DEL": c.DelHooks, "CHECK": c.CheckHooks, "GC": c.GCHooks, "STATUS": c.StatusHooks,
	}
}

func want(c conf, r *sdk.Request) (answer sdk.Answer, err error) {
	if c.Command != nil {
		if err := command("command", c.Command); err != nil {
			return answer, err
		}
	}
	some := c.CNIOutput != "" || c.Command != nil
	for _, verb := range []string{"add", "del", "check", "gc", "status"} {
		for i, argv := range c.hooks()[strings.ToUpper(verb)] {
			if err := command(fmt.Sprintf("%sHooks[%d]", verb, i), argv); err != nil {
				return answer, err
			}
			some = true
		}
	}
	if !some {
		answer.Warn("cniOutput, command and all hooks are missing: the plugin does nothing")
	}
	return answer, nil
}

func command(key string, argv argv) error {
	if len(argv) == 0 || argv[0] == "" || strings.ContainsRune(strings.Join(argv, ""), 0) {
		return spec.Errorf(spec.CodeConfig,
			"%s: %q: want a program and its arguments, such as [\"ip\", \"route\"]", key, argv)
	}
	return nil
}

// journal is what the sdk is to do. What is wrong with the configuration it goes without.
func (c conf) journal() sdk.Journal {
	j := sdk.Journal{File: c.CNIOutput, Max: defaultSize, JSON: c.Format == JSON, Timeout: defaultTimeout * time.Second,
		Hooks: map[string][][]string{}}
	if !filepath.IsAbs(j.File) {
		j.File = ""
	}
	if c.MaxSize != nil && *c.MaxSize >= 0 {
		j.Max = *c.MaxSize
	}
	if c.Timeout > 0 && c.Timeout <= 60 {
		j.Timeout = time.Duration(c.Timeout) * time.Second
	}
	if command("command", c.Command) == nil {
		j.Command = c.Command
	}
	for verb, list := range c.hooks() {
		for _, argv := range list {
			if command(verb, argv) == nil {
				j.Hooks[verb] = append(j.Hooks[verb], argv)
			}
		}
	}
	return j
}
