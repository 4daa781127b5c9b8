package docgen

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// sizes writes the sizes of the programs into the page that names them. internal/dist holds that they are true.
func sizes(root string, files Files) error {
	const path = "docs/decisions.md"
	page, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		return err
	}
	plugins, err := size(root, "cni")
	if err != nil {
		return err
	}
	command, err := size(root, "fairlead")
	if err != nil {
		return err
	}
	sentence := regexp.MustCompile(`The plugins alone have [0-9.]+ MB, the\n?( *)command with them has [0-9.]+ MB\.`)
	if !sentence.Match(page) {
		return fmt.Errorf("%s lacks the sentence with the sizes of the programs", path)
	}
	files[path] = sentence.ReplaceAll(page, fmt.Appendf(nil,
		"The plugins alone have %.1f MB, the\n${1}command with them has %.1f MB.", plugins, command))
	return nil
}

// size is that of a program in MB, as the last line of its list says.
func size(root, program string) (float64, error) {
	path := filepath.Join(root, "internal/dist/size-"+program+".txt")
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	var bytes float64
	if _, err := fmt.Sscan(lines[len(lines)-1], &bytes); err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return bytes / 1e6, nil
}
