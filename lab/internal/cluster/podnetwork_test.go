package cluster

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/portway/portway/lab/internal/command"
	"github.com/portway/portway/lab/internal/docker"
)

const dualNodes = `{"items":[
 {"metadata":{"name":"cp"},"spec":{"podCIDR":"10.244.0.0/24","podCIDRs":["10.244.0.0/24","fd00:10:244::/64"]},
  "status":{"addresses":[{"type":"InternalIP","address":"172.18.0.2"},{"type":"InternalIP","address":"fc00::2"},{"type":"Hostname","address":"cp"}]}},
 {"metadata":{"name":"w1"},"spec":{"podCIDRs":["10.244.1.0/24","fd00:10:244:1::/64"]},
  "status":{"addresses":[{"type":"InternalIP","address":"172.18.0.3"},{"type":"InternalIP","address":"fc00::3"}]}},
 {"metadata":{"name":"w2"},"spec":{"podCIDRs":["10.244.2.0/24","fd00:10:244:2::/64"]},
  "status":{"addresses":[{"type":"InternalIP","address":"172.18.0.4"},{"type":"InternalIP","address":"fc00::4"}]}}]}`

// fakeNodes is the nodes' containers with memory: their files, and what each
// saw in which order.
type fakeNodes struct {
	list  string
	files map[string]string // node and path -> content
	order []string
}

func (f *fakeNodes) Run(_ context.Context, c command.Cmd) (string, error) {
	switch {
	case c.Args[0] == "kubectl" && c.Args[1] == "get":
		return f.list, nil
	case c.Args[0] == "kubectl":
		return "", nil
	case c.Stdin != nil:
		content, err := io.ReadAll(c.Stdin)
		script := c.Args[len(c.Args)-1]
		path := script[strings.LastIndex(script, " ")+1:]
		f.files[c.Args[3]+path] = string(content)
		f.order = append(f.order, path)
		return "", err
	}
	f.order = append(f.order, strings.Join(c.Args[4:], " "))
	return "", nil
}

func TestPodNetwork(t *testing.T) {
	f := &fakeNodes{list: dualNodes, files: map[string]string{}}
	err := PodNetwork(t.Context(), Kubectl{Run: f, Program: "kubectl"}, docker.Client{Run: f})
	if err != nil {
		t.Fatal(err)
	}
	want := "set -e\nip route replace 10.244.0.0/24 via 172.18.0.2\nip route replace fd00:10:244::/64 via fc00::2\n" +
		"ip route replace 10.244.2.0/24 via 172.18.0.4\nip route replace fd00:10:244:2::/64 via fc00::4\n"
	if got := f.files["w1/kind/lab/routes"]; got != want {
		t.Errorf("routes of w1 are\n%s\nwant\n%s", got, want)
	}
	if got := len(slices.Collect(maps.Keys(f.files))); got != 6 {
		t.Errorf("%d files on three nodes", got)
	}
	// A pod must not start before its node knows the way to the others.
	if want := []string{"/kind/lab/routes", "sh /kind/lab/routes", "/etc/cni/net.d/10-lab.conflist"}; !slices.Equal(f.order[:3], want) {
		t.Errorf("order on the first node is %v", f.order[:3])
	}
	var conf struct {
		Plugins []struct {
			Type   string
			IPMasq bool
			IPAM   struct {
				Ranges [][]struct{ Subnet string }
				Routes []struct{ Dst string }
			}
		}
	}
	if err := json.Unmarshal([]byte(f.files["w1/etc/cni/net.d/10-lab.conflist"]), &conf); err != nil {
		t.Fatal(err)
	}
	ptp := conf.Plugins[0]
	if ptp.Type != "ptp" || ptp.IPMasq || len(ptp.IPAM.Ranges) != 2 || ptp.IPAM.Ranges[1][0].Subnet != "fd00:10:244:1::/64" || ptp.IPAM.Routes[1].Dst != "::/0" {
		t.Errorf("first plugin is %+v", ptp)
	}
}

func TestPodNetworkOfBrokenNodes(t *testing.T) {
	for _, list := range []string{"{", `{"items":[{"metadata":{"name":"cp"},"status":{"addresses":[{"type":"InternalIP","address":"nowhere"}]}}]}`} {
		f := &fakeNodes{list: list, files: map[string]string{}}
		if err := PodNetwork(t.Context(), Kubectl{Run: f, Program: "kubectl"}, docker.Client{Run: f}); err == nil {
			t.Errorf("no error for %s", list)
		}
	}
}
