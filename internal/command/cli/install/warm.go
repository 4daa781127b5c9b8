package install

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// warmed says how a file is in memory.
type warmed struct {
	File  string `json:"file"`
	Bytes int64  `json:"bytes"`
	Huge  int64  `json:"hugeBytes"`
	Note  string `json:"note,omitempty"` // why not all of it is in huge pages
}

// WarmCommand is `fairlead warm`.
func WarmCommand(a *app.App) *cobra.Command {
	return &cobra.Command{
		Use: "warm FILE...", GroupID: "attach", Args: app.AtLeast("FILE"),
		Short: "Load programs into memory in huge pages, so that they start faster",
		Long: `Load each FILE into the page cache in huge pages. A plugin is started for each call, and most of its start time is
for mapping its program; huge pages save a sixth of it. After a boot, or when memory was short, the kernel loads programs
in pages of 4 KiB.

The entries of /opt/cni/bin are one file, so naming one of them is enough. fairlead-warm.service does this once a boot.
The kernel may drop the pages again when memory is short. If the file system has no large folios (most of them before
Linux 6.16), the file is loaded in small pages. The answer says so; it is not an error.

Exit status: 0 done, 1 a file cannot be loaded.`,
		Example: `  fairlead warm /opt/cni/bin/bridge`,
		RunE: func(c *cobra.Command, args []string) error {
			doc := struct {
				Files []warmed `json:"files"`
			}{[]warmed{}}
			var errs []error
			for _, file := range args {
				w, err := warm(file)
				if err != nil {
					errs = append(errs, app.Fail(app.ExitFailure,
						"Give programs that exist and can be read, such as "+netconf.AdminDir+"/bridge.",
						"%w", err))
					continue
				}
				doc.Files = append(doc.Files, w)
				if !a.JSON() {
					a.Print("%s: %d of %d KiB in huge pages%s\n", w.File, w.Huge>>10, w.Bytes>>10,
						app.Prefixed("; ", w.Note))
				}
			}
			if a.JSON() {
				errs = append(errs, a.PrintJSON(doc))
			}
			return errors.Join(errs...)
		},
	}
}

// hugePage is the size of a huge page in bytes, on processors with pages of 4 KiB.
const hugePage = 2 << 20

// warm loads a file. Small pages in memory would stay, so it drops them first.
func warm(path string) (w warmed, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return w, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return w, err
	}
	if !st.Mode().IsRegular() {
		return w, &fs.PathError{Op: "load", Path: path, Err: errors.New("is not a regular file")}
	}
	w.File, w.Bytes = path, st.Size()
	if w.Bytes < hugePage {
		w.Note = "smaller than one"
		_, err = io.Copy(io.Discard, f)
		return w, err
	}
	want := w.Bytes / hugePage * hugePage // the rest is in pages as large as the file system supports
	if w.Huge, _, err = load(f, w.Bytes); err != nil || w.Huge >= want {
		return w, err
	}
	_ = f.Sync() // pages not yet written cannot be dropped
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return w, &fs.PathError{Op: "drop", Path: path, Err: err}
	}
	var kept int64
	w.Huge, kept, err = load(f, w.Bytes)
	switch {
	case w.Huge >= want:
	case kept > 0:
		w.Note = fmt.Sprintf("%d KiB cannot be dropped from memory: running programs use them, or the file system "+
			"is in memory",
			kept>>10)
	case w.Huge > 0:
		w.Note = "memory is too fragmented for more"
	default:
		w.Note = "its file system has no large folios on this kernel"
	}
	return w, err
}

// load maps a file and reads all of it, in huge pages if possible. kept is how many bytes were in memory before.
func load(f *os.File, size int64) (huge, kept int64, err error) {
	m, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return 0, 0, &fs.PathError{Op: "map", Path: f.Name(), Err: err}
	}
	defer func() { _ = unix.Munmap(m) }()
	var there unix.Cachestat_t
	if unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{}, &there, 0) == nil { // Linux 6.5
		kept = int64(there.Cache) * int64(os.Getpagesize())
	}
	// A kernel without huge pages returns an error. Other kernels read a whole huge page at a fault.
	_ = unix.Madvise(m, unix.MADV_HUGEPAGE)
	if unix.Madvise(m, unix.MADV_POPULATE_READ) != nil { // Linux before 5.14
		_, err = io.Copy(io.Discard, io.NewSectionReader(f, 0, size))
		return 0, kept, err
	}
	huge, err = mappedHuge(f)
	return huge, kept, err
}

// mappedHuge returns how many bytes of a file this program has mapped in huge pages.
func mappedHuge(f *os.File) (most int64, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, err
	}
	maps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return 0, err
	}
	defer maps.Close()
	lines, this := bufio.NewScanner(maps), false
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		switch {
		case len(words) >= 5 && strings.Contains(words[0], "-"): // fields: range, rights, offset, device, inode, path
			this = words[4] == fmt.Sprint(st.Ino)
		case this && len(words) >= 2 && (words[0] == "FilePmdMapped:" || words[0] == "ShmemPmdMapped:"):
			var kib int64
			if _, err := fmt.Sscan(words[1], &kib); err == nil {
				most = max(most, kib<<10)
			}
		}
	}
	return most, lines.Err()
}
