package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// An image is what is in the image of one architecture, below /usr.
type image struct {
	arch  string
	files []file
}

// A descriptor is a reference to a blob, as the OCI's image specification has it.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
	Variant      string `json:"variant,omitempty"`
}

// A layout is an OCI image layout that is being written as a tar file. Four documents of known shape need no library:
// those that there are bring the client of a registry along.
type layout struct {
	t *tar.Writer
	r release
}

// image writes one layout with an index of the images of all architectures. The program installs the plugins: it is for
// an init container that has the node's directory of plugins mounted.
func (r release) image(images []image) error {
	return r.create("fairlead-"+r.version+".oci.tar", func(w io.Writer) error {
		l := layout{tar.NewWriter(w), r}
		var all []descriptor
		for _, i := range images {
			d, err := l.image(i)
			if err != nil {
				return err
			}
			all = append(all, d)
		}
		index, err := l.document("application/vnd.oci.image.index.v1+json", all)
		if err != nil {
			return err
		}
		index.Annotations = map[string]string{
			"org.opencontainers.image.ref.name": strings.TrimPrefix(r.version, "v"),
			"io.containerd.image.name":          "localhost/fairlead:" + strings.TrimPrefix(r.version, "v"),
		}
		if err := l.put("index.json", must(indexOf([]descriptor{index}))); err != nil {
			return err
		}
		if err := l.put("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
			return err
		}
		return l.t.Close()
	})
}

func indexOf(all []descriptor) any {
	return map[string]any{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": all}
}

// must is v as JSON: what is written here has nothing that JSON cannot say.
func must(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func (l layout) document(kind string, all []descriptor) (descriptor, error) {
	return l.blob(kind, must(indexOf(all)))
}

// image writes the blobs of one architecture.
func (l layout) image(i image) (descriptor, error) {
	var layer, packed bytes.Buffer
	if err := writeTar(&layer, i.files, "usr/", l.r.date); err != nil {
		return descriptor{}, err
	}
	z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return descriptor{}, err
	}
	if _, err := z.Write(layer.Bytes()); err != nil {
		return descriptor{}, err
	}
	if err := z.Close(); err != nil {
		return descriptor{}, err
	}
	data, err := l.blob("application/vnd.oci.image.layer.v1.tar+gzip", packed.Bytes())
	if err != nil {
		return descriptor{}, err
	}
	p := platform{Architecture: i.arch, OS: "linux"}
	if i.arch == "arm" {
		p.Variant = "v7"
	}
	config, err := l.blob("application/vnd.oci.image.config.v1+json", must(map[string]any{
		"created": l.r.date, "architecture": p.Architecture, "os": p.OS, "variant": p.Variant,
		"config": map[string]any{
			"Entrypoint": []string{"/usr/bin/fairlead"}, "Cmd": []string{"install"}, "Env": []string{"PATH=/usr/bin"},
			"Labels": map[string]string{
				"org.opencontainers.image.title":    "fairlead",
				"org.opencontainers.image.version":  l.r.version,
				"org.opencontainers.image.licenses": "Apache-2.0",
				"org.opencontainers.image.source":   "https://github.com/fairlead-cni/fairlead",
			},
		},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{digest(layer.Bytes())}},
	}))
	if err != nil {
		return descriptor{}, err
	}
	d, err := l.blob("application/vnd.oci.image.manifest.v1+json", must(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config,
		"layers": []descriptor{data},
	}))
	d.Platform = &p
	return d, err
}

func digest(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }

func (l layout) blob(kind string, b []byte) (descriptor, error) {
	d := descriptor{MediaType: kind, Digest: digest(b), Size: len(b)}
	return d, l.put("blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:"), b)
}

func (l layout) put(name string, b []byte) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(b)), ModTime: l.r.date}
	if err := l.t.WriteHeader(h); err != nil {
		return err
	}
	_, err := l.t.Write(b)
	return err
}
