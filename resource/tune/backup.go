package tune

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/fairlead-cni/fairlead/internal/kernel/procsys"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/sysctl"
	"github.com/fairlead-cni/fairlead/spec"
)

// keeps reports whether s needs not be written where the value is now: the kernel may show it in other words.
func keeps(r resource.Tuned, s sysctl.NetSysctl, now string) bool {
	c := r.Sysctl[s.Path]
	return procsys.SameValue(now, s.Value) || c != nil && c.Asked == s.Value && procsys.SameValue(c.Is, now)
}

// recall is what is remembered of the link, nil where there is none, by the name of the Tuning's.
func (t Tuning) recall(w *kernel.World, l *rtnl.Link) (r resource.Tuned, known bool, err error) {
	r, known, err = resource.RecallTuned(w, t.Owner, l, t.Link)
	r.File = t.file()
	return r, known, err
}

// remember writes our record and the reference plugin's.
func (t Tuning) remember(w *kernel.World, r resource.Tuned) error {
	if err := w.Store.Put(resource.TuningRecord, t.Owner, r); err != nil {
		return err
	}
	return t.backUp(r)
}

// forget removes both, whatever container they are of.
func (t Tuning) forget(w *kernel.World) error {
	var r resource.Tuned
	_, err := w.Store.Get(resource.TuningRecord, t.Owner, &r)
	errs := []error{err, removeBackup(t.file())}
	if r.File != t.file() {
		errs = append(errs, removeBackup(r.File))
	}
	return errors.Join(append(errs, w.Store.Delete(resource.TuningRecord, t.Owner))...)
}

// A backup is the reference plugin's memory, in its format. It is read, so that a container made by it is
// restored by us, and written, so that one made by us is restored by it: a network card that was moved into a
// container goes back to the host with its own address whichever of the two deletes the container.
type backup struct {
	MAC      string `json:"mac,omitempty"`
	Promisc  *bool  `json:"promisc,omitempty"`
	MTU      int    `json:"mtu,omitempty"`
	AllMulti *bool  `json:"allmulti,omitempty"`
	TxQLen   *int   `json:"txQLen,omitempty"`
}

// file is where the reference plugin has it. Of two networks of a container the names of the interfaces differ. A
// relative DataDir is relative to where the runtime runs its plugins; the record has the whole path.
func (t Tuning) file() string {
	if t.DataDir == "" {
		return ""
	}
	file := filepath.Join(t.DataDir, t.Owner.ContainerID+"_"+t.Owner.IfName+".json")
	if abs, err := filepath.Abs(file); err == nil {
		return abs
	}
	return file
}

// backUp writes what the link was, or removes what an earlier container left.
func (t Tuning) backUp(r resource.Tuned) error {
	file := t.file()
	// A longer name than files can have the reference plugin cannot read either.
	if file == "" || len(filepath.Base(file)+unfinishedBackup) > 255 {
		return nil
	}
	if len(r.Link) == 0 {
		return removeBackup(file)
	}
	var b backup
	for name, c := range r.Link {
		switch name {
		case "address":
			b.MAC = c.Was
		case "mtu":
			b.MTU, _ = strconv.Atoi(c.Was)
		case "promisc":
			b.Promisc = new(c.Was == "on")
		case "allmulticast":
			b.AllMulti = new(c.Was == "on")
		case "txqueuelen":
			n, _ := strconv.Atoi(c.Was)
			b.TxQLen = &n
		}
	}
	text, err := json.MarshalIndent(b, "", " ")
	if err != nil {
		return err
	}
	err = os.MkdirAll(t.DataDir, 0o700)
	if err == nil {
		_ = os.Remove(file + unfinishedBackup) // whatever it is: it is not written through
		err = os.WriteFile(file+unfinishedBackup, text, 0o600)
	}
	if err == nil {
		err = os.Rename(file+unfinishedBackup, file)
	}
	if err != nil {
		return spec.Errorf(spec.CodeIO, "dataDir: %w", err)
	}
	return nil
}

const unfinishedBackup = ".new"

func removeBackup(file string) error {
	if file == "" {
		return nil
	}
	var errs []error
	for _, f := range []string{file, file + unfinishedBackup} {
		if st, err := os.Lstat(f); err == nil && !st.IsDir() {
			if err := os.Remove(f); !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// backedUp is what the reference plugin remembers of the container, if it is readable and says what can be.
func (t Tuning) backedUp() resource.Changes {
	was := resource.Changes{}
	text, err := sysctl.ReadSmall(t.file())
	var b backup
	if err != nil || json.Unmarshal(text, &b) != nil {
		return was
	}
	if mac, err := net.ParseMAC(b.MAC); err == nil && len(mac) == 6 {
		was.Note("address", mac.String(), "", "")
	}
	if b.MTU > 0 {
		was.Note("mtu", strconv.Itoa(b.MTU), "", "")
	}
	if b.Promisc != nil {
		was.Note("promisc", onOff(*b.Promisc), "", "")
	}
	if b.AllMulti != nil {
		was.Note("allmulticast", onOff(*b.AllMulti), "", "")
	}
	if b.TxQLen != nil && *b.TxQLen >= 0 {
		was.Note("txqueuelen", strconv.Itoa(*b.TxQLen), "", "")
	}
	return was
}
