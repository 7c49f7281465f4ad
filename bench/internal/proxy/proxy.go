package proxy

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/procfs"

	"github.com/portway/portway/bench/internal/load"
	"github.com/portway/portway/bench/internal/network"
	"github.com/portway/portway/bench/internal/program"
)

// Names of the proxies that are compared.
const (
	Portway   = "portway"
	KubeProxy = "kube-proxy"
)

// Setting is a proxy mode, with the back end of iptables that it uses.
type Setting struct {
	Mode    string // iptables or ipvs
	Backend string // nft or legacy
}

// ParseSetting reads "iptables-nft", "iptables-legacy" or "ipvs".
func ParseSetting(name string) (Setting, error) {
	switch name {
	case "iptables-nft", "iptables-legacy":
		mode, backend, _ := strings.Cut(name, "-")
		return Setting{mode, backend}, nil
	case "ipvs":
		return Setting{"ipvs", "legacy"}, nil // a kernel with IPVS may be without nftables
	}
	return Setting{}, fmt.Errorf("no mode is called %q: iptables-nft, iptables-legacy, ipvs", name)
}

func (s Setting) String() string {
	if s.Mode == "ipvs" {
		return s.Mode
	}
	return s.Mode + "-" + s.Backend
}

// Config says which proxy runs where.
type Config struct {
	Name       string // Portway or KubeProxy
	Program    string
	Setting    Setting
	Kubeconfig string
	Dir        string // for its files
	Node       *network.Host
}

// Proxy is one that runs.
type Proxy struct {
	cfg     Config
	cmd     *exec.Cmd
	started time.Time
	ended   chan struct{}
}

// Start starts the proxy. Its log is appended to a file in its directory.
func Start(cfg Config) (*Proxy, error) {
	p := &Proxy{cfg: cfg, ended: make(chan struct{})}
	path, err := p.writeFiles()
	if err != nil {
		return nil, err
	}
	log, err := os.OpenFile(p.file("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd = exec.Command(cfg.Program, "--config="+p.file("config.yaml")) //nolint:noctx // Stop ends it, gently first
	if cfg.Name == Portway {
		p.cmd.Args = append(p.cmd.Args, "--agent-socket="+p.Socket())
	}
	p.cmd.Env = append(os.Environ(), "PATH="+path)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.started = time.Now()
	if err := cfg.Node.Start(p.cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", cfg.Name, err)
	}
	go func() {
		_ = p.cmd.Wait() // Ended and Stop say what matters
		close(p.ended)
	}()
	return p, nil
}

// Started is when the program was started.
func (p *Proxy) Started() time.Time { return p.started }

// Socket is where portwayctl asks.
func (p *Proxy) Socket() string { return p.file("agent.sock") }

func (p *Proxy) file(name string) string { return filepath.Join(p.cfg.Dir, name) }

const configuration = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %s
hostnameOverride: %s
clientConnection: {kubeconfig: %s, contentType: application/vnd.kubernetes.protobuf}
detectLocalMode: ClusterCIDR
clusterCIDR: %s
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
enableProfiling: true
oomScoreAdj: 0
`

// writeFiles writes the configuration, and a directory in which "iptables" is
// the wanted back end, and returns a PATH that begins with it.
func (p *Proxy) writeFiles() (path string, err error) {
	bin := p.file("bin")
	if err := os.MkdirAll(bin, 0o700); err != nil {
		return "", err
	}
	text := fmt.Sprintf(configuration, p.cfg.Setting.Mode, load.NodeName, p.cfg.Kubeconfig, network.Pods)
	if err := os.WriteFile(p.file("config.yaml"), []byte(text), 0o600); err != nil {
		return "", err
	}
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, part := range []string{"", "-save", "-restore"} {
			target, err := exec.LookPath(family + "-" + p.cfg.Setting.Backend + part)
			if err != nil {
				return "", fmt.Errorf("%w (cure: apt-get install iptables)", err)
			}
			err = os.Symlink(target, filepath.Join(bin, family+part))
			if err != nil && !errors.Is(err, os.ErrExist) {
				return "", err
			}
		}
	}
	return bin + ":" + os.Getenv("PATH"), nil
}

// Ended says whether the program has ended by itself, with the end of its log.
func (p *Proxy) Ended() error {
	select {
	case <-p.ended:
		return fmt.Errorf("%s has ended: %s\n%s", p.cfg.Name, p.cmd.ProcessState, p.Tail())
	default:
		return nil
	}
}

// Tail is the end of the log.
func (p *Proxy) Tail() string { return program.Tail(p.file("log")) }

// Stop ends the program and waits until it is gone.
func (p *Proxy) Stop() { program.Stop(p.cmd.Process, p.ended, 30*time.Second) }

// Usage is what the program has used so far.
type Usage struct {
	CPU      time.Duration // of the process and of its children that have ended
	RSS      int64         // bytes now
	Peak     int64         // the most bytes at any time
	Children int           // that are at work now
}

// ticksPerSecond is USER_HZ, which is part of the kernel's promise.
const ticksPerSecond = 100

// Usage reads what the program has used.
func (p *Proxy) Usage() (Usage, error) {
	proc, err := procfs.NewProc(p.cmd.Process.Pid)
	if err != nil {
		return Usage{}, fmt.Errorf("%s: %w", p.cfg.Name, err)
	}
	stat, err := proc.Stat()
	if err != nil {
		return Usage{}, fmt.Errorf("%s: %w", p.cfg.Name, err)
	}
	status, err := proc.NewStatus()
	if err != nil {
		return Usage{}, fmt.Errorf("%s: %w", p.cfg.Name, err)
	}
	u := Usage{
		CPU: time.Duration(int64(stat.UTime)+int64(stat.STime)+int64(stat.CUTime)+int64(stat.CSTime)) * time.Second / ticksPerSecond,
		RSS: int64(status.VmRSS), Peak: int64(status.VmHWM),
	}
	u.Children, err = children(proc.PID)
	return u, err
}

func children(pid int) (int, error) {
	all, err := procfs.AllProcs()
	if err != nil {
		return 0, err
	}
	count := 0
	for _, other := range all {
		if stat, err := other.Stat(); err == nil && stat.PPID == pid {
			count++
		}
	}
	return count, nil
}
