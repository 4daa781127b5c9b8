package support

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// unpack is what a reader has of a bundle.
func unpack(t *testing.T, b *Bundle) map[string]string {
	t.Helper()
	var out bytes.Buffer
	files, err := b.Write(&out)
	if err != nil {
		t.Fatal(err)
	}
	gz, err := gzip.NewReader(&out)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for r := tar.NewReader(gz); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil || h.Mode != 0o600 || !strings.HasPrefix(h.Name, Top+"/") || strings.Contains(h.Name, "..") {
			t.Errorf("%s: mode %o, %v", h.Name, h.Mode, err)
		}
		all[strings.TrimPrefix(h.Name, Top+"/")] = string(body)
	}
	if len(all) != files {
		t.Errorf("%d files, and Write says %d", len(all), files)
	}
	return all
}

// TestSecrets holds that nothing secret is in a bundle, wherever it stood.
func TestSecrets(t *testing.T) {
	list := `{"name":"lan","ipam":{"Password":"hunter2-json","etcd":{"authToken":["hunter2-list"]}}}`
	b := &Bundle{When: time.Unix(0, 0)}
	for _, content := range []string{
		list,
		`{"config":"` + base64.StdEncoding.EncodeToString([]byte(list)) + `","cniArgs":[["PASSWORD","hunter2-arg"]]}`,
		`{"env":[{"name":"DB_PASSWD","value":"hunter2-env"}],"text":"{\"secret\": \"hunter2 inner\"}"}`,
		`{"text":"CNI_ARGS=IgnoreUnknown=1;API_KEY=hunter2-cniargs;K8S_POD_NAME=x"}`,
		"password: hunter2 yaml words\nnext: stays-here",
		`{"password":"hunter2-line"}` + "\n" + `{"pass_phrase":1,"passphrase" : "hunter2 \"quoted\" line"}` + "\n",
		`{"broken": "\"clientSecret\":\"hunter2-nested\"", "token": ["hunter2-array"`,
		"tool --api-token hunter2-flag --verbose",
		"https://user:hunter2-url@example.org/x Authorization: Bearer hunter2-bearer",
		"-----BEGIN EC PRIVATE KEY-----\nhunter2pem\n-----END EC PRIVATE KEY-----\n-----BEGIN PRIVATE KEY-----\nhunter2cut",
		`cut "` + base64.StdEncoding.EncodeToString([]byte(list))[:70],
		"an error that quotes hunter2-json without its key",
		`{"args":["run","--token","hunter2-long","--api-key","hunter2-key","-token","hunter2-x","--verbose","plain-arg"]}`,
		`{"args":["--secret=hunter2 with words","token=hunter2-equals","-H","Authorization: Bearer hunter2-head","--token"]}`,
		`{"args":["--password","-hunter2-dash","--token --password hunter2-shell"],"pair":["API_TOKEN","hunter2-pair"]}`,
		`torn {"args":["run","--token", "hunter2-torn","--api-key",\"hunter2-escaped\"`,
		"[--token hunter2-go] says: hunter2-long, hunter2-key, hunter2-lo… and hunter2 with words",
		"args:\n  - --token\n  - hunter2-yaml\n",
	} {
		b.Add(Part{Name: "part", About: "hunter2-json", Content: []byte(content)})
	}
	b.Add(Part{Name: "hunter2-json/x", Err: errors.New("password=hunter2-error")})
	encoded := base64.StdEncoding.EncodeToString([]byte(list))[:30]
	all := unpack(t, b)
	for name, body := range all {
		if strings.Contains(name+body, "hunter2") || strings.Contains(body, encoded) {
			t.Errorf("%s: %s", name, body)
		}
	}
	if !strings.Contains(all["part-5"], "stays-here") || !strings.Contains(all["part-4"], "K8S_POD_NAME=x") {
		t.Errorf("too much is removed: %s %s", all["part-5"], all["part-4"])
	}
	if !strings.Contains(all["part-13"], "plain-arg") || !strings.Contains(all["part-13"], "--verbose") {
		t.Errorf("too much is removed of arguments: %s", all["part-13"])
	}
	if !strings.Contains(all["part-2"], `"name": "lan"`) {
		t.Errorf("the configuration in the cache cannot be read: %s", all["part-2"])
	}
}

// TestMask holds that no address and no name is left, and that what belonged together still does.
func TestMask(t *testing.T) {
	original := []string{"10.80.0.2", "10.80.0.3", "192.0.2.7", "198.51.100.9", "172.20.3.4",
		"fd00:80::2", "2001:db8:1:2::3",
		"2001:db8:1:2:3:4:5:6", "fe80::42:acff:fe11:2", "02:42:ac:11:00:02", "default/web-0", "web-0", "shop", "db-primary"}
	text := strings.Join(original, " ") + ` {"10.80.0.2/24":"[fd00:80::2]:80"} 10.80.0.2:8080:80/tcp addr fd00:80::2: is
		missing.
		via 192.0.2.7. mac=02:42:AC:11:00:02, enx0242ac110002
		::ffff:10.80.0.2 x-web-0-y shop/web-0 0x0a500002 fe80::42:acff:fe11:2%eth0
		10.80.0.1-10.80.0.254 ff02::1:ff11:2 10.1.2.5@cni0
		fd00_80__2@cni0 02-42-ac-11-00-02 fd00:80::2/64, "MkKsEQAC" 127.0.0.1 ::1 0.0.0.0/0 ::/0
		00:01:00:01:2a:2b:2c:2d:02:42:ac:11:00:02 fd00:80::beef:1 ip-10.80.0.9.example "hostPort": 1
		SHOP/Web-0 DB-Primary db-prim… fd77:aaaa… fd77:aaaa:bb… 02:42:ac… 10.80.… 0x8214d… 02-42-ac… fd77::ffff:10.80… ip-10-80-0-2.eu
		alias 0242ac110077 <odd&name>`
	b := &Bundle{Mask: true, Key: []byte("key"), Names: []string{"default/web-0", "web-0", "shop", "db-primary", "c1",
		"02", "beef", "ip-10.80.0.9.example", "0242ac110077", "<odd&name>"},
		When: time.Unix(0, 0)}
	b.Add(Part{Name: "networks/10.80.0.2", Content: []byte(text), About: "the lease of 10.80.0.2"})
	b.Add(Part{Name: "web-0", Err: errors.New("open /run/10.80.0.3: shop c1")})
	b.Add(Part{Name: "cut", Content: []byte(strings.Repeat("x ", MostPart/2-4) + "10.80.0.123 is cut")})
	all := unpack(t, b)
	gone := append(slices.Clone(original), "0a500002", "0242ac110002", "02:42:AC", "02-42-ac",
		"ff11:2", "MkKsEQAC", " c1", "10.80.0", "fd00_80", "2a:2b:2c", "11:00:02", "beef", "example",
		"SHOP", "Web-0", "DB-", "db-p", "fd77", "aaaa", "42:ac", "10.80.", "8214d", "02-42", "10-80-0", "0242ac", "odd&")
	for name, body := range all {
		for _, o := range gone {
			if strings.Contains(name+" "+body, o) {
				t.Errorf("%s has %s: %s", name, o, body)
			}
		}
		if name != "README" && name != "cut" && !strings.HasSuffix(name, ".error") &&
			(!strings.Contains(body, "127.0.0.1") || !strings.Contains(body, "::1") || !strings.Contains(body, "0.0.0.0/0")) {
			t.Errorf("what is the same everywhere is replaced: %s", body)
		}
	}
	m := NewMask([]byte("key"), nil)
	for _, name := range []string{"history/lan/fd09_4a36_7b02__", "fd09_4a36_7b02__1", "fd09_4a36_7b02_0_1_2_3_4"} {
		if to := m.Text(name); strings.Contains(to, "4a36") || !strings.Contains(to, "_") {
			t.Errorf("%s becomes %s", name, to)
		}
	}
	for _, word := range []string{"post_routing", "a_b_c", "add_dead_beef"} {
		if to := m.Text(word); to != word {
			t.Errorf("%s becomes %s", word, to)
		}
	}
	for _, pair := range [][2]string{{"10.80.0.2", "10.80.0.200"}, {"10.80.0.2", "10.80.7.2"}, {"192.0.2.1", "192.0.3.1"},
		{"fd00:80::1", "fd00:80::2"}, {"2001:db8::1", "2001:db8:0:1::1"}, {"172.16.0.1", "172.31.0.1"}} {
		x, y := netip.MustParseAddr(pair[0]), netip.MustParseAddr(pair[1])
		if was, is := common(x, y), common(m.Addr(x), m.Addr(y)); was != is {
			t.Errorf("%v and %v have %d bits in common, and masked %v and %v %d", x, y, was, m.Addr(x), m.Addr(y), is)
		}
		if x.IsPrivate() != m.Addr(x).IsPrivate() {
			t.Errorf("%v becomes %v", x, m.Addr(x))
		}
	}
	seen := map[netip.Addr]netip.Addr{}
	for a := netip.MustParseAddr("9.255.248.0"); a.Less(netip.MustParseAddr("10.0.8.0")); a = a.Next() {
		to := m.Addr(a)
		if from, twice := seen[to]; twice {
			t.Fatalf("%v and %v both become %v", a, from, to)
		}
		seen[to] = a
	}
}

// TestManyNames holds that the mask of a large host is made in time.
func TestManyNames(t *testing.T) {
	var names []string
	for i := range 4000 {
		names = append(names, fmt.Sprintf("production-web-%d", i))
	}
	m := NewMask([]byte("key"), names)
	text := m.Text(strings.Repeat("Production-Web-12 and product 10.1.2.3, ", 20000))
	if strings.Contains(strings.ToLower(text), "web") || !strings.Contains(text, "and product") {
		t.Error("names are left, or words are replaced")
	}
}

func common(a, b netip.Addr) (n int) {
	for n < a.BitLen() {
		p, _ := a.Prefix(n + 1)
		if !p.Contains(b) {
			break
		}
		n++
	}
	return n
}

// TestHostileParts holds that a bundle can be unpacked, whatever parts are called and however large they are.
func TestHostileParts(t *testing.T) {
	b := &Bundle{When: time.Unix(0, 0)}
	for _, name := range []string{"../../etc/passwd", "/abs", "a/../../b", "", "x\x1b[31m\ny", strings.Repeat("n", 5000),
		"README", "same", "same", "dir/README", `c:\x`} {
		b.Add(Part{Name: name, Content: []byte(name)})
	}
	b.Add(Part{Name: "large", Content: make([]byte, MostPart+1)})
	for range MostFile {
		b.Add(Part{Name: "many", Content: make([]byte, MostPart/64)})
	}
	all := unpack(t, b)
	if len(all) > MostFile+1 || len(all["large"]) > MostPart {
		t.Errorf("%d files, the large one has %d bytes", len(all), len(all["large"]))
	}
	for _, want := range []string{"large: cut: the first", "parts are left out", "README-2"} {
		if !strings.Contains(all["README"], want) {
			t.Errorf("README does not say %q", want)
		}
	}
}
