package netfilter

import (
	"strings"
	"testing"

	"github.com/portway/portway/modules/dataplane"
)

// Whatever the text, the rule prints it again, is the same when read again,
// and a rule without text means what its fields say.
func FuzzParseRule(f *testing.F) {
	for _, family := range dataplane.Families() {
		for _, rules := range features(family) {
			for _, r := range rules {
				f.Add(r.String())
			}
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		r := ParseRule(text)
		if r.String() != text {
			t.Errorf("%q prints %q", text, r)
		}
		if ParseRule(r.String()) != r {
			t.Errorf("%q is another rule when read again", text)
		}
		if r.Opaque && r.Text == "" && text != "" {
			t.Errorf("%q is opaque and its text is lost", text)
		}
	})
}

func FuzzReadSave(f *testing.F) {
	f.Add("*nat\n:A - [0:0]\n:INPUT ACCEPT [1:2]\n-A A -j B\n-A INPUT\nCOMMIT\n")
	f.Fuzz(func(t *testing.T, text string) {
		rules := 0
		err := ReadSave(strings.NewReader(text), func(_ Table, c Chain) error {
			rules += len(c.Rules)
			return nil
		})
		if err == nil && rules > strings.Count(text, "-A ") {
			t.Errorf("%d rules in %q", rules, text)
		}
	})
}
