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
	// Services are the addresses that the rules of the table nat look for, in the
	// order in which they do.
	Services []netip.Addr
}

// dispatch begins the names of the chains in which both proxies look for a Service.
const dispatch = "KUBE-SERVICES"

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

// Iptables runs the back end's iptables on the node.
func (p *Proxy) Iptables(ctx context.Context, args ...string) error {
	_, err := p.run(ctx, append([]string{filepath.Join(p.file("bin"), "iptables")}, args...)...)
	return err
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

// addRules takes in what iptables-save prints. Only what a packet can come to is
// a destination: kube-proxy keeps chains for a while that nothing leads to.
func (k *Kernel) addRules(saved []byte) error {
	table := ""
	nat := map[string]*chain{}
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
			if err := k.addRule(nat, strings.Fields(line)); err != nil {
				return err
			}
		}
	}
	k.follow(nat, "PREROUTING", map[string]bool{})
	return lines.Err()
}

// chain is where a chain of the table nat leads to.
type chain struct {
	jumps        []string
	destinations []netip.AddrPort
}

func (k *Kernel) addRule(nat map[string]*chain, words []string) error {
	c := nat[words[1]]
	if c == nil {
		c = new(chain)
		nat[words[1]] = c
	}
	for i, word := range words[:len(words)-1] {
		switch word {
		case "-j", "-g":
			c.jumps = append(c.jumps, words[i+1])
		case "--to-destination":
			if _, err := netip.ParseAddr(words[i+1]); err == nil {
				continue // without a port it is no endpoint: Portway's ipvs mode sends NodePorts to a virtual server
			}
			to, err := netip.ParseAddrPort(words[i+1])
			if err != nil {
				return fmt.Errorf("rule %q: %w", strings.Join(words, " "), err)
			}
			c.destinations = append(c.destinations, to)
		case "-d":
			if p, err := netip.ParsePrefix(words[i+1]); err == nil && p.IsSingleIP() && strings.HasPrefix(words[1], dispatch) {
				k.Services = append(k.Services, p.Addr())
			}
		}
	}
	return nil
}

// follow takes the destinations of a chain and of all that it leads to.
func (k *Kernel) follow(nat map[string]*chain, name string, been map[string]bool) {
	c := nat[name]
	if c == nil || been[name] {
		return
	}
	been[name] = true
	for _, to := range c.destinations {
		k.Destinations[to] = true
	}
	for _, next := range c.jumps {
		k.follow(nat, next, been)
	}
}

// addServers takes in /proc/net/ip_vs. Lines of virtual servers begin with the
// protocol, those of their real servers with an arrow. One that only lets its
// connections end is no destination.
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
			if len(words) < 4 || words[3] != "0" { // its weight: zero lets connections end
				k.Destinations[to] = true
			}
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
