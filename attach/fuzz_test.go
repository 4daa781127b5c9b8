package attach

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/fairlead-cni/fairlead/spec"
)

// FuzzCache: a file of any content is an attachment or a problem, is listed as it is loaded, is written as it was read,
// and does not outlast its DEL.
func FuzzCache(f *testing.F) {
	for _, s := range []string{
		"", "{", "null", "\x00", "[]", `{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.2/24"}}`,
		`{"kind":"cniCacheV1","containerId":"c","ifName":"eth0","networkName":"net","config":"e30="}`,
		`{"kind":"cniCacheV1","containerId":"c","ifName":"eth0","networkName":"net","netns":"/run/netns/c",
		"cniArgs":[["K","V"]],"capabilityArgs":{"mtu":9007199254740993,"mac":null},"fairleadLeft":["bridge"],
		"fairleadNetns":"1 2 3","result":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/run/netns/c"}]}}`,
		`{"kind":"cniCacheV1","containerId":"c","ifName":"eth0","networkName":"net","result":{"cniVersion":"9.9.9"}}`,
		`{"kind":"cniCacheV1","containerId":"other","ifName":"eth0","networkName":"net","result":{}}`,
		`{"kind":"cniCacheV2","containerId":"c"}`,
		`{"kind":"cniCacheV1","containerId":"c","ifName":"eth0","networkName":"net"}0`,
	} {
		f.Add([]byte(s))
	}
	o := spec.Owner{Network: "net", ContainerID: "c", IfName: "eth0"}
	f.Fuzz(func(t *testing.T, content []byte) {
		dir := "/run/fuzz" // in memory
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		r := &Runtime{CacheDir: dir}
		path := r.paths(o)[0]
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}

		list, problems := r.List("")
		c, err := r.load(o)
		if len(list)+len(problems) == 0 || len(list) > 1 {
			t.Errorf("%q: %d attachments, problems %v", content, len(list), problems)
		}
		switch {
		case err != nil:
			if len(list) > 0 || !errors.Is(err, ErrCorrupt) {
				t.Errorf("%q is not loaded (%v), and listed: %+v", content, err, list)
			}
			if aside, err := r.setAside(o); err != nil || len(aside) != 1 {
				t.Errorf("%q: set aside %q, %v", content, aside, err)
			}
		case c == nil:
			if len(list) != 1 || list[0].Owner() == o {
				t.Errorf("%q is not loaded, and listed: %+v", content, list)
			}
			return
		case !c.Bare && c.Owner() != o:
			t.Errorf("%q is of %v", content, c.Owner())
		case !c.Bare:
			writtenAsRead(t, r, c)
		}
		if err := r.forget(o, c); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q outlasts its DEL: %v", content, err)
		}
	})
}

// writtenAsRead notes an unfinished DEL in the file of an attachment, and stores the attachment anew.
func writtenAsRead(t *testing.T, r *Runtime, c *Cached) {
	if _, err := json.Marshal(c.Result); err != nil {
		return // another program's: CNI 0.1.0 has no form for a result without an address
	}
	says := func(what string) string {
		now, err := r.load(c.Owner())
		if err != nil || now == nil {
			t.Fatalf("%s: %+v, %v", what, now, err)
		}
		if len(now.Capabilities) == 0 {
			now.Capabilities = nil // what is empty is not written
		}
		if len(now.Args) == 0 {
			now.Args = nil
		}
		b, err := json.Marshal([]any{now.Netns, now.Config, now.Args, now.Capabilities, now.Result, now.seen, now.Bare})
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	before := says("as it is")
	if err := r.unfinished(c, []string{"a", "b"}); err != nil {
		t.Fatal(err)
	}
	if after := says("with an unfinished DEL"); after != before {
		t.Errorf("an unfinished DEL makes %s of %s", after, before)
	}
	if c.Result == nil {
		return
	}
	if err := r.store(c); err != nil {
		t.Fatal(err)
	}
	if after := says("stored anew"); after != before {
		t.Errorf("stored anew, %s is %s", before, after)
	}
}

// A file that cannot take its place leaves nothing beside it.
func TestUnwritableCache(t *testing.T) {
	o := spec.Owner{Network: "net", ContainerID: "c", IfName: "eth0"}
	r := &Runtime{CacheDir: t.TempDir()}
	path := r.paths(o)[0]
	if err := os.MkdirAll(filepath.Join(path, "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := r.write(o, path, []byte("{}")); err == nil {
		t.Error("a directory was replaced")
	}
	if _, err := os.Lstat(r.temporary(o)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the temporary file: %v", err)
	}
}
