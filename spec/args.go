package spec

import (
	"fmt"
	"strings"
)

// ParseArgs reads CNI_ARGS, "K=V;K=V" (clause P5). Each pair has exactly one "=", a key and maybe an
// empty value; keys are case-sensitive. The error has code 4 and names the pair.
func ParseArgs(s string) ([][2]string, error) {
	if s == "" {
		return nil, nil
	}
	var pairs [][2]string
	for _, pair := range strings.Split(s, ";") {
		k, v, ok := strings.Cut(pair, "=")
		switch {
		case pair == "":
			return nil, Errorf(CodeEnvironment, "CNI_ARGS %q: contains an empty pair (one ; too many)", s)
		case !ok:
			return nil, Errorf(CodeEnvironment, "CNI_ARGS: %q is not KEY=VALUE", pair)
		case k == "":
			return nil, Errorf(CodeEnvironment, "CNI_ARGS: %q has no key", pair)
		case strings.Contains(v, "="):
			return nil, Errorf(CodeEnvironment, "CNI_ARGS: %q has more than one =", pair)
		}
		pairs = append(pairs, [2]string{k, v})
	}
	return pairs, nil
}

// FormatArgs writes pairs in the form that ParseArgs reads. The format has no quoting, so a key or value that contains
// "=", ";" or a zero byte is an error, as is an empty key.
func FormatArgs(pairs [][2]string) (string, error) {
	var b strings.Builder
	for i, p := range pairs {
		if p[0] == "" || strings.ContainsAny(p[0], "=;\x00") || strings.ContainsAny(p[1], "=;\x00") {
			return "", fmt.Errorf("CNI_ARGS cannot contain %q = %q: a key is not empty, and neither key nor value "+
				"contains = or ;", p[0], p[1])
		}
		if i > 0 {
			b.WriteByte(';')
		}
		b.WriteString(p[0] + "=" + p[1])
	}
	return b.String(), nil
}
