package conformance

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

// A modelRuntime is a small runtime that conforms, but for the fault that its name has, as a model's.
type modelRuntime struct {
	fault       string
	list        *spec.List
	netns, file string // of the stored result
	final       json.RawMessage
	version     spec.Version
}

func runModelRuntime(fault string, args []string) int {
	m := &modelRuntime{fault: fault, netns: args[2]}
	var err error
	dir := os.Getenv("NETCONFPATH")
	if _, bad := os.Stat(filepath.Join(dir, "00-bad.conflist")); bad == nil && m.has("C10/invalid") {
		err = errors.New("00-bad.conflist is invalid")
	} else if m.list, err = spec.Load(dir, args[1]); err != nil && m.has("C1/network") {
		os.Rename(filepath.Join(dir, "10-conformance.conflist"), filepath.Join(dir, "x"))
		b, _ := os.ReadFile(filepath.Join(dir, "x"))
		m.list, err = spec.ParseList(bytes.Replace(b, []byte("-network"), []byte("network"), 1))
	}
	if err == nil {
		err = m.choose()
	}
	if err == nil {
		err = m.locks(args[0])
	}
	if err == nil {
		m.file = filepath.Join(stateDir, filepath.Base(m.netns))
		m.final, _ = os.ReadFile(m.file)
		err = m.do(args[0])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// choose sets the version, and the plugins of the list.
func (m *modelRuntime) choose() (err error) {
	if m.has("C5/single") && strings.HasSuffix(m.list.File, ".conf") {
		return errors.New("it is no list")
	}
	if m.has("C8/folder") {
		m.list.Plugins = m.list.Plugins[:min(len(m.list.Plugins), 2)]
	}
	m.version = m.list.CNIVersion
	if !m.has("V10/highest") {
		m.version, err = spec.Select(m.list, spec.Versions())
	}
	return err
}

func (m *modelRuntime) has(check string) bool { return m.fault == check }

func (m *modelRuntime) do(verb string) error {
	switch verb {
	case "add":
		return m.add()
	case "check":
		if m.final == nil && !m.has("R6/check") {
			return errors.New("it was not added")
		}
		if m.list.DisableCheck && !m.has("C6/check") {
			return nil
		}
		return m.each("CHECK", m.final)
	case "del":
		if m.final == nil && m.has("R6/del") {
			return nil
		}
		if err := m.each("DEL", m.final); err != nil && !m.has("R4/del") {
			return err
		}
		os.Remove(m.file)
		return nil
	}
	if verb == "gc" && m.list.DisableGC && !m.has("C7/gc") {
		return nil
	}
	return m.each(strings.ToUpper(verb), nil)
}

func (m *modelRuntime) add() error {
	if m.final != nil && !m.has("R10/twice") {
		return errors.New("it is attached already")
	}
	if m.has("R1/namespace") {
		nstest.RemoveNS(m.netns)
	}
	var prev json.RawMessage
	for _, p := range m.list.Plugins {
		out, err := m.run("ADD", p, prev)
		if err != nil && !m.has("R4/add") {
			if !m.has("R5/undo") {
				m.each("DEL", nil)
			}
			return err
		}
		if prev = out; m.has("R3/chain") {
			prev = nil
		}
	}
	if err := os.MkdirAll(stateDir, 0o755); err != nil {
		return err
	}
	if !m.has("P6/result") {
		os.Stdout.Write(prev)
	}
	return os.WriteFile(m.file, prev, 0o644)
}

// each runs all plugins with one verb.
func (m *modelRuntime) each(verb string, prev json.RawMessage) error {
	plugins := slices.Clone(m.list.Plugins)
	if verb == "DEL" && !m.has("R2/order") || verb == "GC" && m.has("R2/network") {
		slices.Reverse(plugins)
	}
	var errs error
	for _, p := range plugins {
		if _, err := m.run(verb, p, prev); err != nil {
			errs = errors.Join(errs, err)
			if verb != "GC" && !(verb == "DEL" && m.has("R4/del")) || m.has("R4/gc") {
				break
			}
		}
	}
	if verb == "STATUS" && m.has("P21/runtime") {
		return nil
	}
	return errs
}

func (m *modelRuntime) stdin(verb string, p *spec.Conf, prev json.RawMessage) ([]byte, error) {
	o := p.Object
	offered := object{}
	json.Unmarshal([]byte(os.Getenv("CAP_ARGS")), &offered)
	config := m.declared(p, offered)
	prev, err := m.stored(prev)
	if err != nil {
		return nil, err
	}
	o.Delete("capabilities")
	keys := map[string]any{"cniVersion": m.version, "name": m.list.Name}
	if m.has("C4/identity") {
		keys = map[string]any{"cniVersion": m.version}
	}
	if m.has("C3/unknown") {
		o.Delete("other")
	}
	if len(config) > 0 {
		keys["runtimeConfig"] = config
	}
	if prev != nil && !(m.has("R3/final") && verb == "CHECK") {
		keys["prevResult"] = prev
	}
	if _, onDisk := o.Get(validKey); verb == "GC" && !(onDisk && m.has("C9/attachments")) {
		list := []spec.Attachment{}
		if m.final != nil && !m.has("P22/list") {
			list = append(list, spec.Attachment{ContainerID: filepath.Base(m.netns), IfName: os.Getenv("CNI_IFNAME")})
		}
		keys[validKey] = list
	}
	for name, value := range keys {
		if err := o.Set(name, value); err != nil {
			return nil, err
		}
	}
	return o.MarshalJSON()
}

func (m *modelRuntime) run(verb string, p *spec.Conf, prev json.RawMessage) ([]byte, error) {
	path := ""
	for _, dir := range filepath.SplitList(os.Getenv("CNI_PATH")) {
		if _, err := os.Stat(filepath.Join(dir, p.Type)); err == nil && (path == "" || m.has("R11/first")) {
			path = filepath.Join(dir, p.Type)
		}
	}
	if path == "" {
		if m.has("R12/missing") {
			return nil, errors.New("a plugin is missing")
		}
		return nil, errors.New(p.Type + " is missing")
	}
	in, err := m.stdin(verb, p, prev)
	if err != nil {
		return nil, err
	}
	id := filepath.Base(m.netns)
	if m.has("R2/environment") {
		id += p.Type
	}
	cmd := exec.Command(path)
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+verb, "CNI_CONTAINERID="+id, "CNI_NETNS="+m.netns)
	cmd.Stdin = bytes.NewReader(in)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	where := ""
	if m.has("R11/namespace") {
		where = m.netns
	}
	err = nstest.In(where, cmd.Run)
	if m.has("R12/ends") && err != nil {
		return stdout.Bytes(), errors.New("it failed: " + stdout.String())
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s %s", p.Type, err, stdout.String(), stderr.String())
	}
	if verb == "ADD" && !json.Valid(stdout.Bytes()) {
		return nil, fmt.Errorf("%s: no JSON: %s", p.Type, stdout.String())
	}
	return stdout.Bytes(), nil
}
