// Package wireguard keeps the private key of a node, and gives the node's WireGuard device its key and its peers.
package wireguard

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/fairlead-cni/fairlead/internal/plainfile"
)

// longestKeyFile is the size of the longest file that is read, in bytes. A key has 44 characters.
const longestKeyFile = 256

// LoadKey returns the private key in a file, as `wg genkey` writes it. If there is no file, it makes a key, and the file.
func LoadKey(path string) (wgtypes.Key, error) {
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return makeKey(path)
	}
	if err != nil {
		return wgtypes.Key{}, err
	}
	if mode := st.Mode().Perm(); mode&0o077 != 0 {
		return wgtypes.Key{}, fmt.Errorf("%s: has the mode %04o, and a private key has to have 0600: others can read it; "+
			"remove the file, and the agent makes another key", path, mode)
	}
	text, err := plainfile.Read(path, longestKeyFile)
	if err != nil {
		return wgtypes.Key{}, err
	}
	key, err := wgtypes.ParseKey(strings.TrimSpace(string(text)))
	if err != nil || key == (wgtypes.Key{}) {
		return wgtypes.Key{}, fmt.Errorf("%s: has no private key of WireGuard, which is 32 bytes in base64: remove the file, "+
			"and the agent makes another key", path)
	}
	return key, nil
}

// makeKey makes a key and its file. A file under the final name is complete: the node would get another key with each crash.
func makeKey(path string) (wgtypes.Key, error) {
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		return wgtypes.Key{}, err
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return wgtypes.Key{}, err
	}
	tmp := path + ".new" // one agent writes it
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return wgtypes.Key{}, err
	}
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return wgtypes.Key{}, err
	}
	_, err = fmt.Fprintln(f, key)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return wgtypes.Key{}, errors.Join(err, os.Remove(tmp))
	}
	return key, syncDir(dir)
}

// syncDir makes the names of files in a directory last.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
