package spec

import (
	"os"
	"path/filepath"
	"strings"
)

// Unseen reports whether it proves nothing that there is no file at a namespace's path: not even its directory is there, as in
// a container without the host's mounts. What is below /proc is there as long as its process is.
func Unseen(netns string) bool {
	_, err := os.Stat(filepath.Dir(netns))
	return err != nil && !strings.HasPrefix(netns, "/proc/")
}
