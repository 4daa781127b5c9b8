package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"golang.org/x/sys/unix"
)

// sleeper is a player that sleeps, and is about to lock a file that holder has locked.
func sleeper(t *testing.T) (each *player, holder *os.File) {
	path := filepath.Join(t.TempDir(), "lock")
	holder, err := os.Create(path)
	if err == nil {
		err = unix.Flock(int(holder.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { holder.Close() })

	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cmd := exec.Command("cat", "/dev/fd/3") // which says nothing
	cmd.Stdin = file
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	cmd.ExtraFiles = []*os.File{read}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		write.Close()
		_ = cmd.Wait()
	})

	pid := cmd.Process.Pid
	s := &step{held: &nstest.Held{Number: unix.SYS_FLOCK, PID: pid, Args: [6]uint64{0, unix.LOCK_EX}}}
	s.flock()
	if s.wait == nil {
		t.Fatalf("%q is no step that waits", s.name)
	}
	return &player{actor: actor{name: "sleeper"}, begun: true, pid: pid, pending: []*step{s}}, holder
}

// Nobody says that a lock was given back, so a player that waits for one is asked again.
func TestLockGivenBack(t *testing.T) {
	each, holder := sleeper(t)
	if each.runs() || each.next() != nil {
		t.Fatalf("does not wait at %q", each.at())
	}
	p := &play{stage: &stage{said: make(chan news)}, players: []*player{each}}
	holder.Close()
	if over, err := p.waiting(); over || err != nil || each.next() == nil {
		t.Errorf("over %v, %v; is at %q", over, err, each.at())
	}
}

// Where nobody does anything any more, the failure says who waits for whom.
func TestStandstill(t *testing.T) {
	each, _ := sleeper(t)
	p := &play{stage: &stage{said: make(chan news)}, players: []*player{each}}
	for {
		p.quiet += 1000 // as if much time had passed, which counts only while all sleep
		err := p.listen()
		if err == nil {
			continue
		}
		f, broken := errors.AsType[failure](err)
		if !broken || !strings.Contains(f.Text, "sleeper waits at \"lock ") || !strings.Contains(f.Text, "no player") {
			t.Errorf("%v", err)
		}
		return
	}
}
