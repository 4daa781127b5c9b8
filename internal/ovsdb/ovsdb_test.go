package ovsdb_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/internal/ovsdb"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func dial(t *testing.T, o *nstest.OVS) *ovsdb.Conn {
	t.Helper()
	c, err := ovsdb.Dial(t.Context(), o.Socket())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func transact(t *testing.T, c *ovsdb.Conn, ops ...ovsdb.Op) []ovsdb.Answer {
	t.Helper()
	answers, err := c.Transact(t.Context(), ops...)
	if err != nil {
		t.Fatal(err)
	}
	return answers
}

// TestTransact writes rows of all types of values into a real server and reads them; ovs-vsctl sees the same.
func TestTransact(t *testing.T) {
	o := nstest.NewOVS(t, "")
	c := dial(t, o)
	transact(t, c,
		ovsdb.Insert("Interface", "i", map[string]any{"name": "p0", "type": "internal", "ofport_request": 7, "external_ids": ovsdb.Map{"b": `"x"`, "a": "1"}}),
		ovsdb.Insert("Port", "p", map[string]any{"name": "p0", "interfaces": ovsdb.Named("i"),
			"trunks": ovsdb.SetOf(30, 10, 20), "protected": true}),
		ovsdb.Insert("Bridge", "b", map[string]any{"name": "br", "datapath_type": "netdev", "ports": ovsdb.Named("p")}),
		ovsdb.Mutate("Open_vSwitch", nil, "bridges", "insert", ovsdb.SetOf(ovsdb.Named("b"))))
	if got := o.Ctl(t, "get", "interface", "p0", "ofport_request",
		"external_ids"); got != "7\n{a=\"1\", b=\"\\\"x\\\"\"}\n" {
		t.Errorf("ovs-vsctl says %q", got)
	}
	a := transact(t, c,
		ovsdb.Select("Port", ovsdb.Is("name", "p0"), "_uuid", "trunks", "protected", "interfaces", "tag"),
		ovsdb.Select("Interface", ovsdb.Includes("external_ids", ovsdb.Map{"a": "1"}), "_uuid", "name", "external_ids",
			"ofport_request"),
		ovsdb.Select("Bridge", nil, "ports"),
		ovsdb.Count("Port", ovsdb.Is("protected", true)),
		ovsdb.Select("Port", ovsdb.Is("name", "none"), "name"))
	port, iface := a[0].Rows[0], a[1].Rows[0]
	ids, asked := iface.Map("external_ids"), 0
	asked, _ = iface.Int("ofport_request")
	_, tagged := port.Int("tag")
	trunks := port.Ints("trunks")
	switch {
	case len(trunks) != 3 || trunks[0] != 10 || trunks[2] != 30, !port.Bool("protected"), tagged:
		t.Errorf("port %s", port)
	case port.UUID("interfaces") != iface.UUID("_uuid"), a[2].Rows[0].UUID("ports") != port.UUID("_uuid"), port.UUID("_uuid") == "":
		t.Errorf("references %s %s", port, a[2].Rows[0])
	case iface.Text("name") != "p0", ids["b"] != `"x"`, len(ids) != 2, asked != 7:
		t.Errorf("interface %s", iface)
	case a[3].Count != 1, len(a[4].Rows) != 0:
		t.Errorf("count %d, rows %v", a[3].Count, a[4].Rows)
	}
	transact(t, c, ovsdb.Mutate("Bridge", nil, "ports", "delete", ovsdb.SetOf(port.UUID("_uuid"))))
	if got := o.Ctl(t, "list", "interface"); got != "" {
		t.Errorf("nothing refers to %s", got)
	}
}

// TestRefused does nothing of a transaction of which one operation fails.
func TestRefused(t *testing.T) {
	o := nstest.NewOVS(t, "")
	c := dial(t, o)
	bridge := func(name string) []ovsdb.Op {
		return []ovsdb.Op{ovsdb.Insert("Interface", "i", map[string]any{"name": name, "type": "internal"}),
			ovsdb.Insert("Port", "p", map[string]any{"name": name, "interfaces": ovsdb.Named("i")}),
			ovsdb.Insert("Bridge", "b", map[string]any{"name": name, "datapath_type": "netdev", "ports": ovsdb.Named("p")}),
			ovsdb.Mutate("Open_vSwitch", nil, "bridges", "insert", ovsdb.SetOf(ovsdb.Named("b")))}
	}
	transact(t, c, bridge("br")...)
	for _, tt := range []struct {
		name    string
		ops     []ovsdb.Op
		say     string
		changed bool
	}{
		{"a name that is there", bridge("br"), "constraint violation", true},
		{"a wait that does not hold", append(bridge("br2"),
			ovsdb.Wait("Bridge", ovsdb.Is("name", "br"), map[string]any{"name": "br9"})), "timed out", true},
		{"a table that is not there", append(bridge("br2"), ovsdb.Select("Bride", nil, "name")), "Bride", false},
		{"a number out of range", append(bridge("br2"), ovsdb.Mutate("Port", nil, "trunks", "insert", ovsdb.SetOf(5000))),
			"5000", true},
	} {
		_, err := c.Transact(t.Context(), tt.ops...)
		if err == nil || !strings.Contains(err.Error(), tt.say) || !errors.As(err, new(*ovsdb.Error)) ||
			ovsdb.Changed(err) != tt.changed {
			t.Errorf("%s: %v", tt.name, err)
		}
		if got := o.Ctl(t, "list-br"); got != "br\n" {
			t.Errorf("%s: left bridges %q", tt.name, got)
		}
	}
}

// TestApply returns when ovs-vswitchd has acted, also on what other programs change at the same time, and in time where
// it does not run.
func TestApply(t *testing.T) {
	o := nstest.NewOVS(t, "")
	o.Ctl(t, "add-br", "br", "--", "set", "bridge", "br", "datapath_type=netdev")
	c := dial(t, o)
	nstest.Run(t, "sh", "-ec", "for n in 0 1 2; do ip link add a$n type veth peer name b$n; done")
	for _, name := range []string{"a0", "a1", "none"} {
		_, err := c.Apply(t.Context(), time.Minute,
			ovsdb.Insert("Interface", "i", map[string]any{"name": name}),
			ovsdb.Insert("Port", "p", map[string]any{"name": name, "interfaces": ovsdb.Named("i")}),
			ovsdb.Mutate("Bridge", nil, "ports", "insert", ovsdb.SetOf(ovsdb.Named("p"))))
		if err != nil {
			t.Fatal(err)
		}
		row := transact(t, c, ovsdb.Select("Interface", ovsdb.Is("name", name), "ofport", "error"))[0].Rows[0]
		port, known := row.Int("ofport")
		if !known || (port > 0) != (name != "none") || (row.Text("error") == "") != (name != "none") {
			t.Errorf("%s is not in force: %s", name, row)
		}
		c.Close()
		c = dial(t, o)
	}
	o.Stop(t, "ovs-vswitchd")
	if _, err := c.Apply(t.Context(), 100*time.Millisecond); !errors.Is(err, ovsdb.ErrNotApplied) {
		t.Errorf("without ovs-vswitchd: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	c = dial(t, o)
	if _, err := c.Apply(ctx, time.Minute); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with a context that ends: %v", err)
	}
	o.Stop(t, "ovsdb-server")
	if _, err := c.Transact(t.Context()); !errors.Is(err, ovsdb.ErrUnavailable) {
		t.Errorf("on a connection that the server has closed: %v", err)
	}
	if _, err := ovsdb.Dial(t.Context(), o.Socket()); !errors.Is(err, ovsdb.ErrUnavailable) ||
		!errors.Is(err, os.ErrNotExist) {
		t.Errorf("without ovsdb-server: %v", err)
	}
}

// TestEcho answers a server that asks whether the client lives, and bears one that talks nonsense.
func TestEcho(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	heard := make(chan string, 1)
	go func() {
		for _, say := range []string{
			`{"method":"echo","params":["x"],"id":"e"}{"method":"update","params":[],"id":null}{"result":[{"rows":[]}],"error":null,"id":1}`,
			`{"result":null,"error":"unknown database","id":1}`, `{"result":[{},{}],"error":null,"id":1}`, `{"result":7,"error":null,"id":1}`, `nonsense`,
		} {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte(say))
			b := make([]byte, 4096)
			var all string
			for !strings.Contains(all, `"id":1`) || strings.Contains(say, "echo") && !strings.Contains(all, `"e"`) {
				n, err := c.Read(b)
				if err != nil {
					break
				}
				all += string(b[:n])
			}
			if strings.Contains(say, "echo") {
				heard <- all
			}
			c.Close()
		}
	}()
	for i, want := range []string{"", "unknown database", "2 answers to 1 operations", "answer 7", "invalid character"} {
		c, err := ovsdb.Dial(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Transact(t.Context(), ovsdb.Select("Port", nil, "name"))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("answer %d: %v, want %q", i, err, want)
		}
		c.Close()
	}
	if got := <-heard; !strings.Contains(got, `{"error":null,"id":"e","result":["x"]}`) {
		t.Errorf("the server heard %s", got)
	}
}

// TestEndless ends with a server whose answer does not end, and has not read all that it could in the time.
func TestEndless(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	sent := make(chan int, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		n, _ := c.Write([]byte(`{"id":1,"error":null,"result":"`))
		for some, b := 1, []byte(strings.Repeat("x", 1<<20)); some > 0; n += some {
			some, _ = c.Write(b)
		}
		sent <- n
	}()
	c, err := ovsdb.Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Transact(t.Context())
	c.Close()
	if n := <-sent; n > 80<<20 || err == nil || !strings.Contains(err.Error(), "the answer has more than 67108864 bytes") {
		t.Errorf("%d bytes sent: %v", n, err)
	}
}
