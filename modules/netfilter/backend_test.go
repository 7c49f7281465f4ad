package netfilter

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
)

func detect(t *testing.T, f dataplane.Family) Backend {
	t.Helper()
	b, err := Detect(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Proves kubernetes#71305.
func TestDetect(t *testing.T) {
	hint := Transaction{Table: Mangle, Chains: []Chain{chain("KUBE-IPTABLES-HINT")}}
	few := Transaction{Table: NAT, Chains: []Chain{chain("A", Rule{Target: Accept()})}}
	many := Transaction{Table: Filter, Chains: []Chain{chain("A", Rule{Target: Accept()}, Rule{Target: Drop()})}}
	rows := []struct {
		name        string
		nft, legacy []Transaction
		want        string
	}{
		{"nothing: as plain iptables", nil, nil, NFT},
		{"kubelet's hint in nft", []Transaction{hint}, []Transaction{few, many}, NFT},
		{"kubelet's hint in legacy", []Transaction{few, many}, []Transaction{hint}, Legacy},
		{"more rules in nft", []Transaction{few, many}, []Transaction{few}, NFT},
		{"more rules in legacy", []Transaction{few}, []Transaction{few, many}, Legacy},
		{"as many rules in both", []Transaction{few}, []Transaction{few}, NFT},
	}
	for _, f := range dataplane.Families() {
		for _, row := range rows {
			t.Run(fmt.Sprintf("%s/%s", f, row.name), func(t *testing.T) {
				enterNamespace(t)
				for _, tx := range row.nft {
					restore(t, NewHost(testBackend(NFT, f), time.Second), tx)
				}
				for _, tx := range row.legacy {
					restore(t, NewHost(testBackend(Legacy, f), time.Second), tx)
				}
				b := detect(t, f)
				if b.Name != row.want || b.Family != f {
					t.Errorf("chose %s for %s, want %s", b.Name, b.Family, row.want)
				}
				h := NewHost(b, time.Second)
				restore(t, h, Transaction{Table: NAT, Chains: []Chain{chain("MINE")}})
				if _, ok := save(t, h, NAT)["MINE"]; !ok {
					t.Error("the back end found does not work")
				}
				if !h.RandomFully(t.Context()) {
					t.Error("fully random ports are said not to work")
				}
			})
		}
	}
}

// A back end that this kernel cannot run is not chosen, and if none is left
// the error says why.
func TestDetectWhatWorks(t *testing.T) {
	enterNamespace(t)
	command(t, "nft", "add table ip mangle")
	all := []string{"iptables", "iptables-save", "iptables-restore", "iptables-legacy", "iptables-legacy-save", "iptables-legacy-restore"}
	const fails = `case "$*:$0" in --version*) exec PROGRAM "$@";; *legacy*) exec PROGRAM "$@";; esac
echo "Could not fetch rule set generation id: Invalid argument" >&2; exit 1`
	programs(t, fails, all...)
	if b := detect(t, dataplane.IPv4); b.Name != Legacy {
		t.Errorf("chose %s, which does not work", b.Name)
	}
	programs(t, fails, all[:3]...)
	if b, err := Detect(t.Context(), dataplane.IPv4); err == nil || !strings.Contains(err.Error(), "generation id") {
		t.Errorf("chose %s (%v), which does not work", b.Name, err)
	}
	programs(t, `case "$*" in --version*) exec PROGRAM "$@";; esac
exec /usr/bin/setpriv --reuid 65534 --clear-groups PROGRAM "$@"`, all[:3]...)
	want := "iptables: no permission to read or write table mangle: run as root or with CAP_NET_ADMIN"
	if _, err := Detect(t.Context(), dataplane.IPv4); err == nil || err.Error() != want {
		t.Errorf("without rights: %v, want %s", err, want)
	}
}

// Looking does not make tables of iptables-legacy, which would cost packets
// time and make iptables-nft warn for ever.
func TestDetectLeavesNoTrace(t *testing.T) {
	enterNamespace(t)
	detect(t, dataplane.IPv4)
	names, err := os.ReadFile("/proc/thread-self/net/ip_tables_names")
	if err != nil || len(names) > 0 {
		t.Errorf("tables of iptables-legacy: %s (%v)", names, err)
	}
	if out := command(t, "nft", "list", "tables"); out != "" {
		t.Errorf("tables of nft: %s", out)
	}
}

func TestLeftInOthers(t *testing.T) {
	enterNamespace(t)
	for _, name := range []string{NFT, Legacy} {
		restore(t, NewHost(testBackend(name, dataplane.IPv4), time.Second), Transaction{
			Table: NAT, Chains: []Chain{chain("KUBE-" + strings.ToUpper(name)), chain("FOREIGN")},
		})
	}
	ours := func(chain string) bool { return strings.HasPrefix(chain, "KUBE-") }
	for name, want := range map[string]string{NFT: "legacy nat KUBE-LEGACY", Legacy: "nft nat KUBE-NFT"} {
		left, err := testBackend(name, dataplane.IPv4).LeftInOthers(t.Context(), ours)
		if err != nil || !slices.Equal(left, []string{want}) {
			t.Errorf("besides %s there is %v (%v), want %s", name, left, err, want)
		}
	}
}

// programs replaces the iptables programs by scripts.
func programs(t *testing.T, script string, names ...string) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		text := "#!/bin/sh\n" + strings.ReplaceAll(script, "PROGRAM", "/usr/sbin/"+name) + "\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
}

func TestDetectTellsWhatIsMissing(t *testing.T) {
	rows := []struct {
		name, script string
		programs     []string
		want         string
	}{
		{"none", "", nil, "iptables: the program iptables is missing: install the package iptables"},
		{
			"no restore", "exit 0",
			[]string{"iptables", "iptables-save"},
			"iptables: the program iptables-restore is missing: install the package iptables",
		},
		{"broken", "exit 3", []string{"iptables", "iptables-save", "iptables-restore"}, "iptables: iptables does not run"},
		{
			"too old", "echo iptables v1.4.21",
			[]string{"iptables", "iptables-save", "iptables-restore"},
			"iptables: iptables is version 1.4.21: install 1.6.2 or later",
		},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			programs(t, row.script, row.programs...)
			if _, err := Detect(t.Context(), dataplane.IPv4); err == nil || !strings.HasPrefix(err.Error(), row.want) {
				t.Errorf("got %v, want %s", err, row.want)
			}
		})
	}
}
