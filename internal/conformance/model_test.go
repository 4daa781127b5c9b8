package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/spec"
)

// A model is a small plugin that conforms. Its name says of which kind it is, and after a dash the one fault that it
// has, by the ID of the check that has to find it: interface-P12.twice.
type model struct {
	kind, fault       string
	verb              string
	id, netns, ifName string
	args              string
	stdin             []byte
	version           spec.Version // that errors are written in
	conf              modelConf
	stdout            bytes.Buffer
	valid             map[spec.Attachment]bool
}

// A modelConf is what models read of their configurations.
type modelConf struct {
	CNIVersion    *string
	Name          string
	IPAM          struct{ Type string }
	PrevResult    json.RawMessage
	Args          json.RawMessage
	RuntimeConfig modelRuntimeConfig
	Valid         []spec.Attachment `json:"cni.dev/valid-attachments"`
}

// modelKind is the kind of the model that a program is called as.
func modelKind(program string) (kind, fault string, ok bool) {
	kind, fault, _ = strings.Cut(program, "-")
	ok = slices.Contains([]string{"interface", "chained", "ipam"}, kind)
	return kind, strings.Replace(fault, ".", "/", 1), ok
}

// has reports whether the model has the fault that a check has to find.
func (m *model) has(check string) bool { return m.fault == check }

// runModel is the program.
func runModel(kind, fault string) int {
	stdin, err := io.ReadAll(os.Stdin)
	if err != nil {
		return 1
	}
	m := &model{kind: kind, fault: fault, stdin: stdin, verb: os.Getenv("CNI_COMMAND"), id: os.Getenv("CNI_CONTAINERID"),
		netns: os.Getenv("CNI_NETNS"), ifName: os.Getenv("CNI_IFNAME"), args: os.Getenv("CNI_ARGS")}
	e := m.call()
	if e == nil {
		os.Stdout.Write(m.stdout.Bytes())
		return 0
	}
	if m.has("P7/document") {
		fmt.Fprintln(os.Stderr, e.Msg)
		return 1
	}
	v := m.version
	if m.has("P7/version") {
		v = spec.V030
	}
	os.Stdout.Write(e.Encode(v))
	return 1
}

func failed(code spec.Code, format string, args ...any) *spec.Error {
	return &spec.Error{Code: code, Msg: fmt.Sprintf(format, args...)}
}

// ioError is an error of the system, or nil.
func ioError(err error) *spec.Error {
	if err == nil {
		return nil
	}
	return spec.AsError(err, spec.CodeIO)
}

func (m *model) call() *spec.Error {
	if m.verb == "VERSION" {
		return m.answerVersion()
	}
	if !slices.Contains([]string{"ADD", "CHECK", "DEL", "GC", "STATUS"}, m.verb) && !m.has("P2/command") {
		return failed(spec.CodeEnvironment, "CNI_COMMAND %q is unknown", m.verb)
	}
	for _, check := range []func() *spec.Error{m.decode, m.checkVersion, m.checkEnvironment, m.checkConf} {
		if e := check(); e != nil {
			return e
		}
	}
	switch m.kind {
	case "interface":
		return m.interfaces()
	case "chained":
		return m.chained()
	}
	return m.addresses()
}

func (m *model) answerVersion() *spec.Error {
	var asked struct{ CNIVersion spec.Version }
	if err := json.Unmarshal(m.stdin, &asked); err != nil {
		return failed(spec.CodeDecode, "%v", err)
	}
	answer := spec.VersionInfo{CNIVersion: asked.CNIVersion, SupportedVersions: spec.Versions()}
	if m.has("V2/echo") {
		answer.CNIVersion = spec.V040
	}
	b, err := answer.Encode()
	if m.has("V1/answer") {
		b = []byte(`{"cniVersion":"1.0.0","versions":["1.0.0"]}`)
	}
	m.stdout.Write(b)
	return ioError(err)
}

func (m *model) decode() *spec.Error {
	if err := json.Unmarshal(m.stdin, &m.conf); err != nil {
		if m.has("P8/decode") {
			return failed(spec.CodeConfig, "%v", err)
		}
		return failed(spec.CodeDecode, "%v", err)
	}
	m.version = spec.V010
	if m.has("V5/default") {
		m.version = spec.V100
	}
	if m.conf.CNIVersion != nil {
		m.version = spec.Version(*m.conf.CNIVersion)
	}
	return nil
}

func (m *model) checkVersion() *spec.Error {
	v := m.version
	tooOld := m.verb == "CHECK" && !v.AtLeast(spec.V040) && !m.has("V8/old") ||
		(m.verb == "GC" || m.verb == "STATUS") && !v.AtLeast(spec.V110) && !m.has("V9/old")
	if !v.Known() && m.has("V3/unspoken") {
		m.version, m.conf.IPAM.Type = spec.Newest, "" // which would refuse
		return nil
	}
	if !v.Known() || tooOld {
		return failed(spec.CodeVersion, "version %q is not supported for %s", v, m.verb)
	}
	return nil
}

func (m *model) checkEnvironment() *spec.Error {
	if m.verb == "GC" || m.verb == "STATUS" {
		if m.has("P22/silent") {
			m.stdout.WriteString("{}")
		}
		return nil
	}
	var bad []string
	for _, v := range []struct{ name, value string }{{"CNI_CONTAINERID", m.id}, {"CNI_IFNAME", m.ifName},
		{"CNI_NETNS", m.netns}} {
		if v.value == "" && !(m.verb == "DEL" && v.name == "CNI_NETNS" && !m.has("P12/no-netns")) {
			bad = append(bad, v.name)
		}
	}
	if m.has("P2/all") && len(bad) > 1 {
		bad = bad[:1]
	}
	if m.id != "" && spec.ValidContainerID(m.id) != nil && !m.has("P3/container") {
		bad = append(bad, "CNI_CONTAINERID")
	}
	if m.ifName != "" && spec.ValidIfName(m.ifName) != nil && !m.has("P4/interface") {
		bad = append(bad, "CNI_IFNAME")
	}
	code := spec.CodeEnvironment
	if m.has("P2/missing") {
		code = spec.CodeConfig
	}
	if len(bad) > 0 {
		return failed(code, "missing or malformed: %s", strings.Join(bad, ", "))
	}
	if m.has("P5/ignore") && strings.Contains(m.args, "K8S") {
		return failed(spec.CodeEnvironment, "CNI_ARGS has unknown keys")
	}
	return nil
}

func (m *model) checkConf() *spec.Error {
	switch bad := spec.ValidName(m.conf.Name); {
	case m.conf.Name == "" && m.has("C1/missing"), m.conf.Name != "" && m.has("C1/malformed"):
	case bad != nil:
		return failed(spec.CodeConfig, "name %q: %v", m.conf.Name, bad)
	}
	if m.conf.IPAM.Type == "" && m.has("I5/none") {
		return failed(spec.CodeConfig, "ipam is missing")
	}
	if m.conf.Args != nil && m.has("C12/args") {
		return failed(spec.CodeConfig, "args is unknown")
	}
	if strings.Contains(string(m.conf.Args), "labels") && m.has("K11/labels") {
		return failed(spec.CodeConfig, "args.cni.labels is unknown")
	}
	if _, e := m.wantedMAC(); e != nil {
		return e
	}
	if m.verb == "CHECK" && m.conf.PrevResult == nil && !m.has("P14/no-result") && m.kind != "ipam" {
		return failed(spec.CodeConfig, "CHECK needs prevResult")
	}
	if m.verb == "DEL" && m.conf.PrevResult == nil && m.has("P12/no-result") {
		return failed(spec.CodeConfig, "DEL needs prevResult")
	}
	if m.verb == "DEL" && m.has("P6/silent") || m.verb == "GC" && m.has("P22/silent") {
		m.stdout.WriteString("{}")
	}
	m.valid = map[spec.Attachment]bool{}
	for _, a := range m.conf.Valid {
		m.valid[a] = true
	}
	return nil
}

// prints writes a result.
func (m *model) prints(r *spec.Result) *spec.Error {
	b, err := r.Encode(m.version)
	switch {
	case err != nil:
		return ioError(err)
	case m.has("V4/label"):
		b = bytes.Replace(b, []byte(`"`+m.version+`"`), []byte(`"0.4.0"`), 1)
	case m.has("V6/format"):
		b = bytes.Replace(b, []byte(`{`), []byte(`{"code": 0,`), 1)
	}
	m.stdout.Write(b)
	return nil
}

// delegate runs the IPAM plugin, if there is one.
func (m *model) delegate(verb string) (*spec.Result, *spec.Error) {
	typ := m.conf.IPAM.Type
	if typ == "" || m.has("I2/verbs") && verb == "CHECK" || m.has("P22/delegate") && verb == "GC" ||
		m.has("P21/delegate") && verb == "STATUS" {
		return &spec.Result{}, nil
	}
	if strings.Contains(typ, "/") && !m.has("C2/ipam") {
		return nil, failed(spec.CodeConfig, "ipam.type %q is a path", typ)
	}
	path := ""
	for _, dir := range filepath.SplitList(os.Getenv("CNI_PATH")) {
		if _, err := os.Stat(filepath.Join(dir, typ)); err == nil {
			path = filepath.Join(dir, typ)
		}
	}
	cmd := exec.Command(path)
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+verb)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(m.stdin), os.Stderr
	switch {
	case m.has("I1/environment"):
		cmd.Env = append(cmd.Env, "CNI_ARGS=")
	case m.has("I1/stderr"):
		cmd.Stderr = nil
	case m.has("I1/configuration"):
		var doc object
		json.Unmarshal(m.stdin, &doc)
		delete(doc, "args")
		b, _ := json.Marshal(doc)
		cmd.Stdin = bytes.NewReader(b)
	}
	out, err := cmd.Output()
	if err != nil {
		e, ok := spec.DecodeError(out)
		if !ok {
			e = ioError(err)
		}
		if m.has("I2/error") {
			e.Code = 999
		}
		return nil, e
	}
	if verb != "ADD" {
		return nil, nil
	}
	r, err := spec.DecodeResult(out, m.version)
	return r, ioError(err)
}

// owner is the attachment, as text that is part of names.
func (m *model) owner() string { return m.conf.Name + "," + m.id + "," + m.ifName }

// hostEnd is the name of the host's end of the pair.
func (m *model) hostEnd() string {
	h := fnv.New32a()
	key := m.owner()
	if m.has("P19/interfaces") {
		key = m.id
	}
	io.WriteString(h, key)
	return fmt.Sprintf("model%08x", h.Sum32())
}

// stateDir has a file for each attachment that a model remembers.
const stateDir = "/var/lib/cni/model"

// stale are the owners that files or links name, of this network and not valid.
func (m *model) stale(owners []string) (list []string) {
	for _, o := range owners {
		part := strings.Split(o, ",")
		if len(part) != 3 || part[0] != m.conf.Name && !m.has("P22/network") {
			continue
		}
		a := spec.Attachment{ContainerID: part[1], IfName: part[2]}
		if !m.valid[a] || m.has("P22/stale") {
			list = append(list, o)
		}
	}
	if m.has("P22/empty") && len(m.valid) == 0 {
		return nil
	}
	return list
}
