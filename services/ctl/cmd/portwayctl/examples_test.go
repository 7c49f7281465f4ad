package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// answers are those of an agent that is content with everything.
var answers = map[string]string{
	"explain":                       `{"flow": "f", "planes": [{"plane": "p", "agree": true}]}`,
	"audit":                         `{"planes": [{"plane": "p", "differences": []}]}`,
	"resync":                        `{"planes": [{"plane": "p", "differences": []}]}`,
	"services-default-kubernetes":   `[{"name": "https", "protocol": "TCP", "port": 443, "addresses": ["10.96.0.1"]}]`,
	"services-kube-system-kube-dns": `[{"name": "dns", "protocol": "UDP", "port": 53, "addresses": ["10.96.0.10"]}]`,
}

// TestExamples runs every example of every command's help.
func TestExamples(t *testing.T) {
	dir := t.TempDir()
	for name, text := range answers {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
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
	for _, cmd := range commands(newCommand()) {
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
			if err := root.ExecuteContext(t.Context()); err != nil {
				t.Errorf("%s: %v", line, err)
			}
		}
	}
	if ran < 5 {
		t.Errorf("only %d examples", ran)
	}
}

// commands are all but those that cobra adds.
func commands(root *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{root}
	for _, c := range root.Commands() {
		all = append(all, commands(c)...)
	}
	return all
}
