package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// answers are those of an agent that is content with everything.
var answers = map[string]string{
	"explain":                       `{"flow": "f", "planes": [{"plane": "p", "agree": true}]}`,
	"audit":                         `{"planes": [{"plane": "p", "differences": []}]}`,
	"resync":                        `{"planes": [{"plane": "p", "differences": []}]}`,
	"node":                          `{"mode": "iptables", "config": {"nodeName": "worker-1", "masqueradeBit": 14}, "local": {"addresses": ["192.168.0.1/24"]}}`,
	"relay":                         `[]`,
	"services-default-kubernetes":   `[{"name": "https", "protocol": "TCP", "port": 443, "addresses": ["10.96.0.1"]}]`,
	"services-kube-system-kube-dns": `[{"name": "dns", "protocol": "UDP", "port": 53, "addresses": ["10.96.0.10"]}]`,
}

// pods are objects that a dump does not have.
const pods = `
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: web}
spec: {clusterIP: 10.96.0.20, clusterIPs: [10.96.0.20], ipFamilies: [IPv4], ports: [{port: 80}]}
`

// TestExamples runs every example of every command's help. What is dumped is the
// state of this machine, which is not what the agent of the test thinks it is:
// answers from a dump must tell of differences, and those of the agent of none.
func TestExamples(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for name, text := range answers {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile("pods.yaml", []byte(pods), 0o600); err != nil {
		t.Fatal(err)
	}
	socket, kubeconfig := filepath.Join(dir, "s"), filepath.Join(dir, "kubeconfig")
	stop, err := startAgent(socket, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	sim, err := startCluster(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	defer sim.Close()
	ran := 0
	for _, cmd := range dumpFirst(commands(newCommand())) {
		if cmd.Runnable() && cmd.Example == "" {
			t.Errorf("%s has no example", cmd.CommandPath())
		}
		for line := range strings.Lines(cmd.Example) {
			line = strings.TrimSpace(line)
			if line == "" || line[0] == '#' {
				continue
			}
			ran++
			line, _, _ = strings.Cut(line, " | ")
			args := strings.Fields(line)
			if args[0] != "portwayctl" {
				t.Errorf("%q runs another program", line)
				continue
			}
			root := newCommand()
			root.SetOut(io.Discard)
			root.SetArgs(append(args[1:], "--socket="+socket, "--kubeconfig="+kubeconfig))
			var want error
			if strings.Contains(line, "--from=") {
				want = errDiffers
			}
			if err := root.ExecuteContext(t.Context()); !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", line, err, want)
			}
		}
	}
	if ran < 5 {
		t.Errorf("only %d examples", ran)
	}
}

// dumpFirst puts what writes a dump before what reads it.
func dumpFirst(all []*cobra.Command) []*cobra.Command {
	dump := slices.IndexFunc(all, func(c *cobra.Command) bool { return c.Name() == "dump" })
	return append([]*cobra.Command{all[dump]}, slices.Delete(slices.Clone(all), dump, dump+1)...)
}

// commands are all but those that cobra adds.
func commands(root *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{root}
	for _, c := range root.Commands() {
		all = append(all, commands(c)...)
	}
	return all
}
