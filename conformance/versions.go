package conformance

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/spec"
)

// unspoken is a version that no plugin speaks.
const unspoken = "9.9.9"

func versionChecks() []Check {
	return []Check{
		{ID: "V1/answer", Title: "VERSION with no other variable and no network prints the versions",
			Sentence: `Plugins must output a JSON object with the following keys upon a VERSION operation: cniVersion, supportedVersions: a list of supported specification versions.`,
			Kinds:    everyPlugin(), run: versionAnswer},
		{ID: "V2/echo", Title: "VERSION repeats the version that it was asked in",
			Sentence: "cniVersion: The value of cniVersion specified on input.",
			Kinds:    everyPlugin(), run: versionEcho},
		{ID: "V3/unspoken", Title: "ADD in version " + unspoken + " is error code 1, and changes nothing",
			Kinds:    everyPlugin(),
			Sentence: "Error code 1: Incompatible CNI version.", run: unspokenVersion},
	}
}

func versionAnswer(t *trial) error {
	a, err := t.do("VERSION", nil, raw(`{"cniVersion":"1.0.0"}`))
	if err != nil {
		return err
	}
	const expected = "one JSON object with cniVersion and a list supportedVersions"
	if a.failed != nil {
		return differs(expected, "%s", a)
	}
	var doc struct {
		CNIVersion        spec.Version
		SupportedVersions []string
	}
	if err := json.Unmarshal(a.stdout, &doc); err != nil {
		return differs(expected, "%v in %s", err, a)
	}
	if doc.CNIVersion == "" || len(doc.SupportedVersions) == 0 {
		return differs(expected, "%s", a)
	}
	for _, v := range doc.SupportedVersions {
		if _, err := spec.ParseVersion(v); err != nil || v == "" {
			return differs("versions of three numbers", "%q in %s", v, a)
		}
	}
	return nil
}

func versionEcho(t *trial) error {
	for _, v := range t.subject.Versions {
		if !v.AtLeast(spec.V020) { // which brought VERSION
			continue
		}
		a, err := t.do("VERSION", nil, raw(`{"cniVersion":"`+string(v)+`"}`))
		if err != nil {
			return err
		}
		var doc spec.VersionInfo
		if err := json.Unmarshal(a.stdout, &doc); a.failed != nil || err != nil || doc.CNIVersion != v {
			return differs("cniVersion "+string(v), "%s", a)
		}
	}
	return nil
}

func unspokenVersion(t *trial) error {
	c, err := t.container("c1")
	if err != nil {
		return err
	}
	before, err := t.state(c)
	if err != nil {
		return err
	}
	a, err := t.do("ADD", c, in(unspoken))
	if err != nil {
		return err
	}
	if a.doc == nil || a.doc.Code != spec.CodeVersion {
		return differs("error code 1", "%s", a)
	}
	return t.unchanged("an ADD that is refused", before, c)
}

// join is the versions as a text.
func join(vs []spec.Version) string {
	var texts []string
	for _, v := range vs {
		texts = append(texts, string(v))
	}
	return strings.Join(texts, ", ")
}

// newest is the newest of the versions that the protocol has.
func newest(vs []spec.Version) spec.Version {
	for _, v := range slices.Backward(spec.Versions()) {
		if slices.Contains(vs, v) {
			return v
		}
	}
	return spec.V010
}
