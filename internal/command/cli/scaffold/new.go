// Package scaffold is fairlead new plugin: the files that a plugin outside this tree begins with. They are in
// template.
package scaffold

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"text/template"

	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/plainfile"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
)

const modulePath = "github.com/fairlead-cni/fairlead"

// A newPlugin is what the files of a new plugin are made of.
type newPlugin struct {
	Name, Link    string
	Chained, Tidy bool

	source string // a tree of this module to build with; empty: a release
}

// Command is `fairlead new`.
func Command(a *app.App) *cobra.Command {
	c := &cobra.Command{Use: "new", GroupID: "look", Short: "Write the source of a new plugin"}
	c.AddCommand(newPluginCommand(a))
	return c
}

func newPluginCommand(a *app.App) *cobra.Command {
	var p newPlugin
	var dir string
	c := &cobra.Command{
		Use: "plugin NAME", Args: app.Operands("NAME"),
		Short: "Write the source of a new CNI plugin, with tests",
		Long: `Write the source of a CNI plugin called NAME to a new directory: one Go file, go.mod, golden files, tests that run
the plugin through its whole life on throw-away hosts, and a README. It builds and passes its tests as it is, and
docs/plugin-author.md says how to go on from there. By default the plugin makes an interface; with --chained, it adds
to the interface that the plugins before it made.`,
		Example: `  fairlead new plugin mynet && cd mynet && go mod tidy && go test ./...
  fairlead new plugin extra-routes --chained --dir ~/src/extra-routes`,
		RunE: func(c *cobra.Command, args []string) error {
			p.Name, p.Tidy = args[0], p.source == ""
			if err := validPluginName(p.Name); err != nil {
				return app.Usage("plugin %q: %w", p.Name, err)
			}
			if dir == "" {
				dir = p.Name
			}
			files, err := p.files(a.Version)
			if err != nil {
				return err
			}
			if err := writeTree(dir, files); err != nil {
				return err
			}
			if a.JSON() {
				return a.PrintJSON(struct {
					Dir   string   `json:"dir"`
					Files []string `json:"files"`
				}{dir, slices.Sorted(maps.Keys(files))})
			}
			for _, name := range slices.Sorted(maps.Keys(files)) {
				a.Print("%s\n", filepath.Join(dir, name))
			}
			test := "go test ./..."
			if p.Tidy {
				test = "go mod tidy && " + test
			}
			if p.Tidy && !isRelease(a.Version) {
				a.Note("this fairlead is no release: --source DIR has the plugin built with the source in DIR, which " +
					"then needs no " +
					"`go mod tidy`")
			}
			a.Note("`cd %s && %s` tests it; docs/plugin-author.md says how to go on", dir, test)
			return nil
		},
	}
	c.Flags().StringVar(&dir, "dir", "", "`DIR` to make and write to (default: NAME)")
	c.Flags().BoolVar(&p.Chained, "chained", false, "write a plugin that adds to what the plugins before it made")
	c.Flags().StringVar(&p.source, "source", "",
		"build with the source of Fairlead in `DIR`, rather than with a release")
	return c
}

// validPluginName says what is wrong with the type of a new plugin, which is the name of its file and of its module.
func validPluginName(name string) error {
	if err := spec.ValidType(name); err != nil {
		return err
	}
	if err := spec.ValidName(name); err != nil {
		return err
	}
	if strings.HasSuffix(name, ".") || slices.Contains([]string{"con", "nul", "prn", "aux"}, strings.ToLower(name)) ||
		regexp.MustCompile(`(?i)^(com|lpt)[0-9]$`).MatchString(name) {
		return errors.New("no Go module can be called that")
	}
	if netconf.OfType(name) != nil || name == "fairlead" {
		return errors.New("is Fairlead's own: choose another name")
	}
	return nil
}

//go:embed template
var templates embed.FS

// files are those of the plugin, by their names.
func (p newPlugin) files(version string) (files map[string][]byte, err error) {
	if p.Link = p.Name + "0"; spec.ValidIfName(p.Link) != nil {
		p.Link = "br7"
	}
	shape := "template/interface"
	if p.Chained {
		shape = "template/chained"
	}
	files = map[string][]byte{}
	if err := p.module(version, files); err != nil {
		return nil, err
	}
	err = fs.WalkDir(templates, "template", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path.Dir(name) != "template" && !strings.HasPrefix(name, shape+"/") {
			return err
		}
		text, err := templates.ReadFile(name)
		if err != nil {
			return err
		}
		t, err := template.New(name).Parse(string(text))
		if err != nil {
			return err
		}
		var b bytes.Buffer
		err = t.Execute(&b, p)
		name = strings.TrimPrefix(strings.TrimPrefix(name, shape+"/"), "template/")
		files[strings.TrimSuffix(name, ".tmpl")] = b.Bytes()
		return err
	})
	return files, err
}

// module writes go.mod. Where a source tree is given, all that it requires is required, so that nothing has to be
// looked up. Else, `go mod tidy` completes it; without a release, it takes the newest.
func (p newPlugin) module(version string, files map[string][]byte) error {
	mod := bytes.NewBufferString("module example.com/" + p.Name + "\n\n")
	if p.source == "" {
		parts := regexp.MustCompile(`^go(\d+\.\d+)`).FindStringSubmatch(runtime.Version())
		if parts != nil {
			fmt.Fprintf(mod, "go %s\n", parts[1])
		}
		if isRelease(version) {
			fmt.Fprintf(mod, "\nrequire %s %s\n", modulePath, version)
		}
		files["go.mod"] = mod.Bytes()
		return nil
	}
	source, err := filepath.Abs(p.source)
	if err != nil {
		return err
	}
	b, err := plainfile.ReadLinked(filepath.Join(source, "go.mod"), plainfile.MaxSize)
	if err != nil {
		return app.Usage("--source: %w", err)
	}
	first, rest, _ := strings.Cut(string(b), "\n")
	if strings.TrimSpace(first) != "module "+modulePath {
		return app.Usage("--source %s: is not the source of Fairlead: its go.mod begins with %q", p.source, first)
	}
	fmt.Fprintf(mod, "%s\n\nrequire %s v0.0.0\n\nreplace %[2]s => %s\n", strings.TrimSpace(rest), modulePath, source)
	files["go.mod"] = mod.Bytes()
	files["go.sum"], err = plainfile.ReadLinked(filepath.Join(source, "go.sum"), plainfile.MaxSize)
	return err
}

// isRelease reports whether a version is that of a release, which the module can be required in.
func isRelease(version string) bool {
	return regexp.MustCompile(`^v\d+\.\d+\.\d+$`).MatchString(version)
}

// writeTree makes dir, which must not exist, or be empty, and writes files into it.
func writeTree(dir string, files map[string][]byte) error {
	if list, err := os.ReadDir(dir); err == nil && len(list) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return app.Fail(app.ExitUsage, "Choose another directory with --dir, or remove what is in that one.",
			"%s is not an empty directory", dir)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := app.CreateFile(file, files[name]); err != nil {
			return err
		}
	}
	return nil
}
