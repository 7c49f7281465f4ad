package cluster

import (
	"errors"
	"testing"
)

const save = `*nat
:KUBE-SERVICES - [0:0]
-A KUBE-SERVICES -d 10.96.0.10/32 -p udp -m comment --comment "kube-system/dns" -j KUBE-SVC-DNS
-A KUBE-SERVICES -d 10.96.7.7/32 -p tcp -m comment --comment "shop/web:http" -j KUBE-SVC-WEB
-A KUBE-SERVICES -d 10.96.7.8/32 -p tcp -j KUBE-MARK-MASQ
-A KUBE-SVC-WEB -m statistic --mode random -j KUBE-SEP-ONE
-A KUBE-SEP-ONE -p tcp -j DNAT --to-destination 10.244.1.2:80
-A KUBE-SEP-TWO -p tcp -j DNAT --to-destination 10.244.1.3:80
COMMIT
`

func TestRulesAbout(t *testing.T) {
	const want = `-A KUBE-SERVICES -d 10.96.7.7/32 -p tcp -m comment --comment "shop/web:http" -j KUBE-SVC-WEB
-A KUBE-SVC-WEB -m statistic --mode random -j KUBE-SEP-ONE
-A KUBE-SEP-ONE -p tcp -j DNAT --to-destination 10.244.1.2:80`
	for _, word := range []string{"shop/web", "10.96.7.7"} {
		if got := RulesAbout(save, word); got != want {
			t.Errorf("rules about %s:\n%s", word, got)
		}
	}
	if got := RulesAbout(save, "none"); got != "" {
		t.Errorf("rules about nothing:\n%s", got)
	}
}

func TestParseDial(t *testing.T) {
	for _, c := range []struct {
		name, raw string
		answers   int
		err       error
	}{
		{"all answered", `{"responses":["a","b"]}`, 2, nil},
		{"refused", `{"errors":["Get \"http://10.96.0.1:80/hostname\": dial tcp 10.96.0.1:80: connect: connection refused"]}`, 0, ErrRefused},
		{"silent", `{"errors":["Get \"http://x\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)"]}`, 0, ErrSilent},
		{"UDP, silent", `{"errors":["reading from udp connection failed. err:'read udp 1->2: i/o timeout'"]}`, 0, ErrSilent},
		{"UDP, refused", `{"errors":["reading from udp connection failed. err:'read udp 1->2: read: connection refused'"]}`, 0, ErrRefused},
		{"UDP, rejected on a node", `{"errors":["udp connection write failed. err:write udp 1->2: write: operation not permitted"]}`, 0, ErrRefused},
		{"one of two", `{"responses":["a"],"errors":["connection refused"]}`, 1, ErrRefused},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parseDial([]byte(c.raw), 2)
			if len(got) != c.answers || (err != nil) != (c.err != nil) || !errors.Is(err, c.err) {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
}

func TestParseExports(t *testing.T) {
	got := parseExports("export KUBECONFIG=/a/b\nexport DOCKER_HOST=unix:///run/x.sock\nexport PATH=/bin:$PATH\n")
	if got["KUBECONFIG"] != "/a/b" || got["DOCKER_HOST"] != "unix:///run/x.sock" {
		t.Errorf("read %v", got)
	}
}
