package config

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/kube-proxy/config/v1alpha1"
)

const typed = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

// mount is a folder as kubelet makes it of a ConfigMap: the file is a link into
// a folder, which is a link that is exchanged.
type mount struct {
	t    *testing.T
	dir  string
	next int
}

func (m *mount) file() string { return filepath.Join(m.dir, "config.yaml") }

func (m *mount) write(content string) {
	m.t.Helper()
	version := string(rune('a' + m.next))
	m.next++
	data, fresh := filepath.Join(m.dir, "..data"), filepath.Join(m.dir, "..fresh")
	err := errors.Join(
		os.Mkdir(filepath.Join(m.dir, version), 0o700),
		os.WriteFile(filepath.Join(m.dir, version, "config.yaml"), []byte(content), 0o600),
		os.Symlink(version, fresh), os.Rename(fresh, data))
	if m.next == 1 {
		err = errors.Join(err, os.Symlink(filepath.Join("..data", "config.yaml"), m.file()))
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

// TestAwaitChange: another configuration is the end, a wrong one is refused and
// told of once, and the old one again is none.
func TestAwaitChange(t *testing.T) {
	m := &mount{t: t, dir: t.TempDir()}
	m.write(typed + "mode: iptables\n")
	o := NewOptions()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.AddFlags(fs)
	if err := errors.Join(fs.Parse([]string{"--config=" + m.file()}), o.Complete(fs)); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var refused []string
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error, 1)
		go func() {
			ended <- o.AwaitChange(ctx, Watch{
				Every: time.Second,
				Valid: func(c *v1alpha1.KubeProxyConfiguration) error {
					return Validate(c, []string{"iptables", "ipvs"}).ToAggregate()
				},
				Refused: func(err error) {
					refused = append(refused, err.Error()[strings.Index(err.Error(), ": ")+2:])
				},
			})
		}()
		for _, step := range []struct {
			content string
			end     bool
			refused []string
		}{
			{content: typed + "mode: iptables\n"},
			{content: typed + "mode: [\n", refused: []string{"not valid YAML"}},
			{content: typed + "mode: quick\n", refused: []string{"not valid YAML", `mode: Unsupported value: "quick"`}},
			{content: typed + "mode: iptables\n", refused: []string{"not valid YAML", `mode: Unsupported value: "quick"`}},
			{content: typed + "mode: ipvs\n", end: true, refused: []string{"not valid YAML", `mode: Unsupported value: "quick"`}},
		} {
			m.write(step.content)
			time.Sleep(3 * time.Second) //nolint:forbidigo // virtual time passes
			synctest.Wait()
			if !slices.EqualFunc(refused, step.refused, strings.HasPrefix) {
				t.Errorf("%s: refused %q, want %q", step.content, refused, step.refused)
			}
			select {
			case err := <-ended:
				if !step.end || err == nil || !strings.Contains(err.Error(), "has changed") {
					t.Errorf("%s: ended with %v", step.content, err)
				}
			default:
				if step.end {
					t.Errorf("%s: did not end", step.content)
				}
			}
		}
	})
}

// TestAwaitChangeEnds with the context, and has nothing to do without a file.
func TestAwaitChangeEnds(t *testing.T) {
	if err := NewOptions().AwaitChange(t.Context(), Watch{}); err != nil {
		t.Errorf("without a file: %v", err)
	}
	o := NewOptions()
	o.ConfigFile = "missing"
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := o.AwaitChange(ctx, Watch{Every: time.Hour}); err != nil {
		t.Errorf("when the context ends: %v", err)
	}
}
