package publish

import (
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/spec"
)

// iptConditions are the words of conditions, which iptables itself will understand or refuse.
func iptConditions(list []string, v6 bool) (words []string, err error) {
	key := ConditionsKey(v6)
	for _, c := range list {
		words = append(words, strings.Fields(c)...)
	}
	if len(words) > 0 && words[0][0] != '-' && words[0][0] != '!' {
		return nil, spec.Errorf(spec.CodeConfig,
			"%s: %q: the backend is iptables; want its words, such as -s 192.0.2.0/24",
			key, strings.Join(list, " "))
	}
	for i, w := range words {
		if w == "-j" || w == "-g" || strings.HasPrefix(w, "--jump") || strings.HasPrefix(w, "--goto") ||
			strings.ContainsAny(w, "\n\"") || len(w) > 255 {
			return nil, spec.Errorf(spec.CodeConfig, "%s: %q: want matches alone", key, w)
		}
		// "!-s", as the reference's documentation writes it
		if after, ok := strings.CutPrefix(w, "!"); ok && after != "" {
			words = slices.Concat(words[:i], []string{"!", after}, words[i+1:])
		}
	}
	return words, nil
}
