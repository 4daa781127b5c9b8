package wireguard

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// A key is made once, in a file that the owner alone may read, and read afterwards.
func TestKeyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "key")
	first, err := LoadKey(path)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode() != 0o600 {
		t.Errorf("%v, %v; want the mode 0600", st, err)
	}
	if again, err := LoadKey(path); err != nil || again != first {
		t.Errorf("the key is %v, %v; was %v", again.PublicKey(), err, first.PublicKey())
	}

	// What an agent left that was killed before the file was complete is replaced.
	if err := os.Rename(path, path+".new"); err != nil {
		t.Fatal(err)
	}
	second, err := LoadKey(path)
	if err != nil || second == first {
		t.Errorf("the key is that of a file that was not complete: %v", err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("%v, %v; want the key alone", entries, err)
	}
}

// A file that is not what the agent wrote stays as it is, and the error says which mode or content it has, and what to do.
func TestKeyFileRefused(t *testing.T) {
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		text string
		mode os.FileMode
		want string
	}{
		"readable by all":  {key.String() + "\n", 0o644, "has the mode 0644, and a private key has to have 0600"},
		"readable by some": {key.String() + "\n", 0o640, "has the mode 0640"},
		"writable by some": {key.String() + "\n", 0o620, "has the mode 0620"},
		"empty":            {"", 0o600, "has no private key"},
		"short":            {"AAAA\n", 0o600, "has no private key"},
		"no base64":        {strings.Repeat("!", 44), 0o600, "has no private key"},
		"zeros":            {(wgtypes.Key{}).String(), 0o600, "has no private key"},
		"two keys":         {key.String() + "\n" + key.String() + "\n", 0o600, "has no private key"},
		"large":            {strings.Repeat("A", 1<<20), 0o600, "more than"},
	} {
		path := filepath.Join(t.TempDir(), "key")
		if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, tc.mode); err != nil {
			t.Fatal(err)
		}
		_, err := LoadKey(path)
		if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v; want %q and the path", name, err, tc.want)
		}
		if tc.text != "" && err != nil && strings.Contains(err.Error(), strings.TrimSpace(tc.text)) {
			t.Errorf("%s: the error has the key: %v", name, err)
		}
		if after, err := os.ReadFile(path); err != nil || string(after) != tc.text {
			t.Errorf("%s: the file was changed, %v", name, err)
		}
	}

	path := filepath.Join(t.TempDir(), "key")
	if err := os.Symlink("/dev/zero", path); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadKey(path); err == nil {
		t.Error("a symbolic link was read")
	}
	if err := os.Mkdir(path+"2", 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadKey(path + "2"); err == nil {
		t.Error("a directory was read")
	}
}
