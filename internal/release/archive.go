package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path"
	"time"
)

// archive writes a compressed tar file.
func (r release) archive(name string, files []file) error {
	return r.create(name, func(w io.Writer) error {
		z, err := gzip.NewWriterLevel(w, gzip.BestCompression)
		if err != nil {
			return err
		}
		return errors.Join(writeTar(z, files, "", r.date), z.Close())
	})
}

// writeTar writes files, below a prefix, as root's and of one time. Directories come before what is in them where there
// is a prefix: an image needs them, an archive that is unpacked into a directory of others must not change theirs.
func writeTar(w io.Writer, files []file, prefix string, date time.Time) error {
	t := tar.NewWriter(w)
	made := map[string]bool{"": true}
	var makeDir func(dir string) error
	makeDir = func(dir string) error {
		if dir == "." || made[dir] {
			return nil
		}
		if err := makeDir(path.Dir(dir)); err != nil {
			return err
		}
		made[dir] = true
		return t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, Uname: "root",
			Gname:   "root",
			ModTime: date})
	}
	for _, f := range files {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: prefix + f.path, Mode: int64(f.mode), Uname: "root",
			Gname:   "root",
			ModTime: date}
		if prefix != "" {
			if err := makeDir(path.Dir(h.Name)); err != nil {
				return err
			}
		}
		if f.link != "" {
			h.Typeflag, h.Linkname = tar.TypeLink, prefix+f.link
		} else if st, err := os.Stat(f.source); err != nil {
			return err
		} else {
			h.Size = st.Size()
		}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if f.link == "" {
			if err := copyInto(t, f.source); err != nil {
				return err
			}
		}
	}
	return t.Close()
}

func copyInto(w io.Writer, source string) error {
	in, err := os.Open(source)
	if err != nil {
		return err
	}
	defer in.Close()
	_, err = io.Copy(w, in)
	return err
}
