package proxy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// Objects is what a proxy has made in the kernel.
type Objects struct {
	Rules, Chains, Sets, Entries int
	// VirtualServers and RealServers are those of IPVS.
	VirtualServers, RealServers int
}

// Kernel is the state of the node's kernel that proxies make.
type Kernel struct {
	Objects Objects
	// Destinations are the endpoints that some rule, or virtual server, leads to.
	Destinations map[netip.AddrPort]bool
	// Services are the addresses that rules of the table nat compare with, in the
	// order of the table.
	Services []netip.Addr
}

// Read reads all of it.
func (p *Proxy) Read(ctx context.Context) (Kernel, error) {
	k := Kernel{Destinations: map[netip.AddrPort]bool{}}
	rules, err := p.run(ctx, filepath.Join(p.file("bin"), "iptables-save"))
	if err != nil {
		return k, err
	}
	if err := k.addRules(rules); err != nil {
		return k, err
	}
	sets, err := p.run(ctx, "ipset", "save")
	if err != nil {
		return k, err
	}
	for line := range bytes.Lines(sets) {
		switch {
		case bytes.HasPrefix(line, []byte("create ")):
			k.Objects.Sets++
		case bytes.HasPrefix(line, []byte("add ")):
			k.Objects.Entries++
		}
	}
	if p.cfg.Setting.Mode != "ipvs" {
		return k, nil
	}
	var servers []byte
	err = p.cfg.Node.Do(func() error {
		servers, err = os.ReadFile("/proc/thread-self/net/ip_vs")
		return err
	})
	if err != nil {
		return k, err
	}
	return k, k.addServers(servers)
}

// run runs a program on the node and returns what it prints.
func (p *Proxy) run(ctx context.Context, args ...string) ([]byte, error) {
	var out, complaint bytes.Buffer
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := p.cfg.Node.Do(cmd.Run); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, complaint.Bytes())
	}
	return out.Bytes(), nil
}

// addRules takes in what iptables-save prints.
func (k *Kernel) addRules(saved []byte) error {
	table := ""
	lines := bufio.NewScanner(bytes.NewReader(saved))
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
		case strings.HasPrefix(line, ":"):
			k.Objects.Chains++
		case strings.HasPrefix(line, "-A "):
			k.Objects.Rules++
			if table != "nat" {
				continue
			}
			if err := k.addRule(strings.Fields(line)); err != nil {
				return err
			}
		}
	}
	return lines.Err()
}

func (k *Kernel) addRule(words []string) error {
	for i, word := range words[:len(words)-1] {
		switch word {
		case "--to-destination":
			to, err := netip.ParseAddrPort(words[i+1])
			if err != nil {
				return fmt.Errorf("rule %q: %w", strings.Join(words, " "), err)
			}
			k.Destinations[to] = true
		case "-d":
			if p, err := netip.ParsePrefix(words[i+1]); err == nil && p.IsSingleIP() {
				k.Services = append(k.Services, p.Addr())
			}
		}
	}
	return nil
}

// addServers takes in /proc/net/ip_vs. Lines of virtual servers begin with the
// protocol, those of their real servers with an arrow.
func (k *Kernel) addServers(list []byte) error {
	for line := range bytes.Lines(list) {
		words := strings.Fields(string(line))
		switch {
		case len(words) < 2:
		case words[0] == "TCP" || words[0] == "UDP":
			k.Objects.VirtualServers++
		case words[0] == "->" && words[1] != "RemoteAddress:Port":
			k.Objects.RealServers++
			to, err := hexAddrPort(words[1])
			if err != nil {
				return fmt.Errorf("real server %q: %w", words[1], err)
			}
			k.Destinations[to] = true
		}
	}
	return nil
}

// hexAddrPort reads "0A800001:1F90".
func hexAddrPort(text string) (netip.AddrPort, error) {
	host, port, _ := strings.Cut(text, ":")
	b, err := hex.DecodeString(host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	addr, ok := netip.AddrFromSlice(b)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("%q is no address", host)
	}
	number, err := strconv.ParseUint(port, 16, 16)
	return netip.AddrPortFrom(addr, uint16(number)), err
}
