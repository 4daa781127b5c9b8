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

func versionAnswer(t *trial) {
	a := t.do("VERSION", nil, raw(`{"cniVersion":"1.0.0"}`))
	const expected = "one JSON object with cniVersion and a list supportedVersions"
	a.expect(a.failed == nil, expected)
	var doc struct {
		CNIVersion        spec.Version
		SupportedVersions []string
	}
	err := json.Unmarshal(a.stdout, &doc)
	expect(err == nil, expected, "%v in %s", err, a)
	a.expect(doc.CNIVersion != "" && len(doc.SupportedVersions) > 0, expected)
	for _, v := range doc.SupportedVersions {
		_, err := spec.ParseVersion(v)
		expect(err == nil && v != "", "versions of three numbers", "%q in %s", v, a)
	}
}

func versionEcho(t *trial) {
	for _, v := range t.subject.Versions {
		if !v.AtLeast(spec.V020) { // which brought VERSION
			continue
		}
		a := t.do("VERSION", nil, raw(`{"cniVersion":"`+string(v)+`"}`))
		var doc spec.VersionInfo
		err := json.Unmarshal(a.stdout, &doc)
		a.expect(a.failed == nil && err == nil && doc.CNIVersion == v, "cniVersion "+string(v))
	}
}

func unspokenVersion(t *trial) {
	c := t.container("c1")
	before := t.state(c)
	a := t.do("ADD", c, in(unspoken))
	a.expect(a.code() == spec.CodeVersion, "error code 1")
	t.unchanged("an ADD that is refused", before, c)
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
