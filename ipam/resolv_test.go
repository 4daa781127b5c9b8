package ipam

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/spec"
	"github.com/miekg/dns"
)

func TestParseResolvConf(t *testing.T) {
	got := ParseResolvConf("# of the host\n;nameserver 10.9.9.9\nnameserver 10.0.0.53 first\nnameserver\n" +
		"domain old.test\ndomain new.test\nsearch a.test b.test\n\tsearch\tc.test\n" +
		"options ndots:5 edns0\noptions rotate\nsortlist 10.0.0.0\nnameserver fd00::53")
	want := spec.DNS{Nameservers: []string{"10.0.0.53", "fd00::53"}, Domain: "new.test",
		Search: []string{"a.test", "b.test", "c.test"}, Options: []string{"ndots:5", "edns0", "rotate"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// FuzzParseResolvConf compares with miekg/dns, where the last line with a search or a domain counts alone.
func FuzzParseResolvConf(f *testing.F) {
	f.Add("nameserver 10.0.0.53\nsearch a.test b.test\n#domain x\noptions ndots:5\n")
	f.Add("domain a.test\r\n  nameserver\tfd00::53 # first\n;search b\nnameserver")
	f.Fuzz(func(t *testing.T, text string) {
		got := ParseResolvConf(text)
		theirs, err := dns.ClientConfigFromReader(strings.NewReader(text))
		if err != nil {
			return
		}
		if !slices.Equal(got.Nameservers, theirs.Servers) {
			t.Errorf("%q: name servers %q, want %q", text, got.Nameservers, theirs.Servers)
		}
		for _, name := range theirs.Search {
			if name != got.Domain && !slices.Contains(got.Search, name) {
				t.Errorf("%q: %q is not in %+v", text, name, got)
			}
		}
	})
}
