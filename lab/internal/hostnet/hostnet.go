// Package hostnet keeps the lab's traffic on this machine, and puts the
// machine's own network settings back as they were.
package hostnet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/portway/portway/lab/internal/command"
)

// Host is this machine's network.
type Host struct {
	Run    command.Runner
	Sysctl string // the directory of sysctls; /proc/sys
}

// Saved is what the machine had before a daemon of ours started.
type Saved struct {
	Sysctls  map[string]string // path below /proc/sys -> value
	Policies map[string]string // program -> policy of its FORWARD chain
	Docker   bool              // another Docker's chains were there
	Tables   []string          // nftables tables, which iptables makes and never removes
}

// sysctls are those that dockerd sets for the whole machine.
func sysctls() []string {
	return []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/ipv6/conf/default/forwarding"}
}

// programs are the ones for both families.
func programs() []string { return []string{"iptables", "ip6tables"} }

// Save reads what Restore puts back.
func (h Host) Save(ctx context.Context) (Saved, error) {
	saved := Saved{Sysctls: map[string]string{}, Policies: map[string]string{}}
	for _, name := range sysctls() {
		value, err := os.ReadFile(filepath.Join(h.Sysctl, name))
		if errors.Is(err, os.ErrNotExist) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return Saved{}, fmt.Errorf("sysctl %s: %w", name, err)
		}
		saved.Sysctls[name] = strings.TrimSpace(string(value))
	}
	for _, program := range programs() {
		out, err := h.Run.Run(ctx, command.New(program, "--wait", "-S", "FORWARD"))
		if err != nil {
			return Saved{}, err
		}
		first, _, _ := strings.Cut(out, "\n")
		saved.Policies[program] = strings.TrimSpace(strings.TrimPrefix(first, "-P FORWARD "))
	}
	out, err := h.Run.Run(ctx, command.New("iptables-save"))
	if err != nil {
		return Saved{}, err
	}
	saved.Docker = strings.Contains(out, "\n:DOCKER ")
	saved.Tables, err = h.tables(ctx)
	return saved, err
}

// Guard makes everything that the bridge's containers send beyond the bridge
// end here, for IPv4 and IPv6: another machine, or a gateway that answers to
// any address, would make a Service look alive that is not programmed. Docker
// lets DOCKER-USER come first; that chain may exist before Docker does.
func (h Host) Guard(ctx context.Context, bridge string) error {
	if _, err := h.Run.Run(ctx, command.New("iptables", "--wait", "-n", "-L", "DOCKER-USER")); err != nil {
		if _, err := h.Run.Run(ctx, command.New("iptables", "--wait", "-N", "DOCKER-USER")); err != nil {
			return err
		}
	}
	for _, r := range rules(bridge) {
		if _, err := h.Run.Run(ctx, r.command("-C")); err == nil {
			continue
		}
		if _, err := h.Run.Run(ctx, r.command("-I")); err != nil {
			return fmt.Errorf("guard of %s: %w", bridge, err)
		}
	}
	return nil
}

// Unguard removes what Guard added.
func (h Host) Unguard(ctx context.Context, bridge string) error {
	for _, r := range rules(bridge) {
		for {
			if _, err := h.Run.Run(ctx, r.command("-C")); err != nil {
				break // not there (any more)
			}
			if _, err := h.Run.Run(ctx, r.command("-D")); err != nil {
				return fmt.Errorf("guard of %s: %w", bridge, err)
			}
		}
	}
	return nil
}

type rule struct {
	program, chain string
	match          []string
}

func rules(bridge string) []rule {
	match := []string{"-i", bridge, "!", "-o", bridge, "-j", "REJECT"}
	return []rule{
		{"iptables", "DOCKER-USER", match},
		// Docker 20.10 leaves IPv6 alone and has no chain for its users there.
		{"ip6tables", "FORWARD", match},
	}
}

func (r rule) command(verb string) command.Cmd {
	return command.New(append([]string{r.program, "--wait", verb, r.chain}, r.match...)...)
}

// Restore removes the chains that our dockerd left (it removes none when it
// ends) and puts policies and sysctls back.
func (h Host) Restore(ctx context.Context, saved Saved) error {
	var errs []error
	if !saved.Docker {
		errs = append(errs, h.removeDockerChains(ctx))
	}
	for program, policy := range saved.Policies {
		_, err := h.Run.Run(ctx, command.New(program, "--wait", "-P", "FORWARD", policy))
		errs = append(errs, err)
	}
	for name, value := range saved.Sysctls {
		if err := os.WriteFile(filepath.Join(h.Sysctl, name), []byte(value), 0o644); err != nil {
			errs = append(errs, fmt.Errorf("sysctl %s: %w", name, err))
		}
	}
	return errors.Join(append(errs, h.removeEmptyTables(ctx, saved.Tables))...)
}

func (h Host) removeDockerChains(ctx context.Context) error {
	for _, program := range programs() {
		out, err := h.Run.Run(ctx, command.New(program+"-save"))
		if err != nil {
			return err
		}
		input := withoutDocker(out)
		if input == "" {
			continue
		}
		restore := command.New(program+"-restore", "--wait", "--noflush")
		restore.Stdin = strings.NewReader(input)
		if _, err := h.Run.Run(ctx, restore); err != nil {
			return fmt.Errorf("removing Docker's chains: %w", err)
		}
	}
	return nil
}

// withoutDocker is input for iptables-restore --noflush that removes Docker's
// chains and the jumps to them from what iptables-save printed.
func withoutDocker(save string) string {
	var out strings.Builder
	var table string
	var deletes, chains []string
	for line := range strings.Lines(save) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "*"):
			table, deletes, chains = line, nil, nil
		case strings.HasPrefix(line, ":DOCKER"):
			chain, _, _ := strings.Cut(line[1:], " ")
			chains = append(chains, chain)
		case strings.HasPrefix(line, "-A ") && !strings.HasPrefix(line, "-A DOCKER") && strings.Contains(line, " -j DOCKER"):
			deletes = append(deletes, "-D"+line[2:])
		case line == "COMMIT" && len(chains) > 0:
			fmt.Fprintln(&out, table)
			for _, d := range deletes {
				fmt.Fprintln(&out, d)
			}
			for _, verb := range []string{"-F ", "-X "} { // flush all first: they jump to each other
				for _, c := range chains {
					fmt.Fprintln(&out, verb+c)
				}
			}
			fmt.Fprintln(&out, "COMMIT")
		}
	}
	return out.String()
}
