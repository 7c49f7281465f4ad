package config

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestKubeadmFile: a file as kubeadm writes it, with every field and few of
// them set, is taken without an error or a warning.
func TestKubeadmFile(t *testing.T) {
	_, cfg, err := load("testdata/kubeadm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if errs := Validate(cfg, known); len(errs) > 0 {
		t.Error(errs.ToAggregate())
	}
	if w := warnings(cfg, pflag.NewFlagSet("", pflag.ContinueOnError), true); len(w) > 0 {
		t.Errorf("warnings: %q", w)
	}
	if cfg.DetectLocalMode != ClusterCIDR || *cfg.IPTables.MasqueradeBit != 14 || *cfg.Conntrack.MaxPerCore != 0 || cfg.IPTables.SyncPeriod.Duration.Seconds() != 30 {
		t.Errorf("defaults were not filled in: %+v", cfg)
	}
}

// FuzzDecode: no file makes the agent panic, and what is accepted can be
// written and read again.
func FuzzDecode(f *testing.F) {
	file, err := os.ReadFile("testdata/kubeadm.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(file)
	f.Add([]byte(head + "nodePortAddresses: [primary, 010.0.0.0/8]\nclusterCIDR: ','\n"))
	f.Add([]byte(head + "iptables: {masqueradeBit: 99}\noomScoreAdj: 1\n---\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, err := Decode(data)
		if err != nil {
			if strings.TrimSpace(err.Error()) == "" {
				t.Error("an error that says nothing")
			}
			return
		}
		Validate(cfg, known)
		SyncPeriod(cfg)
		MasqueradeBit(cfg)
		NodeIP(cfg)
		ClusterCIDRs(cfg)
		out, err := Encode(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Decode(out); err != nil {
			t.Errorf("what was written is not read: %v\n%s", err, out)
		}
	})
}
