package etcd

import (
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// The refusal to remove a member says which others have to run.
func TestLostQuorum(t *testing.T) {
	list := []StoreMember{{Name: "m1", ID: 1, Answers: true}, {Name: "m2", ID: 2}, {Name: "m3", ID: 3}}
	for want, list := range map[string][]StoreMember{"start m3 before": list, "try again": list[:2], "it is the only one": list[1:2]} {
		err := lostQuorum(list, StoreMember{Name: "m2", ID: 2}, rpctypes.ErrUnhealthy)
		if !strings.Contains(err.Error(), "member m2 stays") || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q", err, want)
		}
	}
	if err := lostQuorum(list, list[1], errUnwatched); err != errUnwatched {
		t.Error(err)
	}
}

// A member is removed by way of another one, and the others are told, also where it is the one that is asked. Of two machines that
// become members at once, the second one is told of the first.
func TestRemoveSelf(t *testing.T) {
	nstest.NeedProgram(t, "etcd")
	const all = "m1=http://127.0.0.1:2380,m2=http://127.0.0.1:3380"
	for name, port := range map[string]string{"m1": "2", "m2": "3"} {
		client, peer := "http://127.0.0.1:"+port+"379", "http://127.0.0.1:"+port+"380"
		cmd := exec.Command("etcd", "--name", name, "--data-dir", filepath.Join(t.TempDir(), name), "--log-level", "error", "--initial-cluster", all,
			"--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	}
	here := func(url string) *Store {
		s, err := Open(Access{Cluster: "c", Endpoints: []string{url}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	for {
		others, err := here("http://127.0.0.1:3379").RemoveStoreMember(t.Context(), "m2")
		if err == nil {
			if len(others) != 1 || others[0].Name != "m1" {
				t.Errorf("the others are %v", others)
			}
			break
		}
		if t.Context().Err() != nil { // members are connected for some seconds before one can be removed
			t.Fatal(err)
		}
	}
	m1 := here("http://127.0.0.1:2379")
	if _, err := m1.AddStoreMember(t.Context(), "m3", "http://127.0.0.1:4380"); err != nil {
		t.Fatal(err)
	}
	_, err := m1.AddStoreMember(t.Context(), "m4", "http://127.0.0.1:5380")
	if want := "the machine at http://127.0.0.1:4380 becomes a member"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}
