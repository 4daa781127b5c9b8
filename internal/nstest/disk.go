package nstest

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Disks are file systems of a size, so that they can be full.
type Disks struct {
	Dirs []string // where they are
	Room string   // options of tmpfs(5)
}

// Mount mounts them, empty.
func (d Disks) Mount() error {
	return d.each(func(dir string) error { return unix.Mount("tmpfs", dir, "tmpfs", 0, d.Room) })
}

// Fill leaves no room, neither for bytes nor for files.
func (d Disks) Fill() error {
	return d.each(func(dir string) error {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			return err
		}
		blocks, files := max(st.Blocks-st.Bfree, 1), max(st.Files-st.Ffree, 1) // 0 would be no bound
		used := fmt.Sprintf("size=%d,nr_inodes=%d", blocks*uint64(st.Bsize), files)
		return unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, used)
	})
}

// Empty gives them their room back.
func (d Disks) Empty() error {
	return d.each(func(dir string) error { return unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, d.Room) })
}

func (d Disks) each(do func(dir string) error) (err error) {
	for _, dir := range d.Dirs {
		err = errors.Join(err, do(dir))
	}
	return err
}
