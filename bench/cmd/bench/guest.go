package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/portway/portway/bench/internal/load"
	"github.com/portway/portway/bench/internal/network"
	"github.com/portway/portway/bench/internal/proxy"
	"github.com/portway/portway/bench/internal/report"
)

const (
	// tap joins a guest's kernel to the bridge; vec0 is its other end.
	tap    = "guest0"
	uplink = "vec0"
)

// guestAddress is the bridge's in the guest, beside the node's behind it.
var guestAddress = netip.MustParseAddr("192.168.77.3")

// request is what a guest is to measure, and what became of it.
type request struct {
	Programs, Kubeconfig string
	Parts                []string
	Samples              int
	Churn, Start         time.Duration
	Run                  report.Run
}

// guestModules are what a node has loaded that has been up for a while, and what
// counts netlink. A guest has just been booted, and to load one takes it a tenth of a
// second, of the start of whoever is first to want it.
func guestModules() []string {
	modules := []string{"nlmon", "dummy", "ip_vs", "ip_vs_rr", "ip_vs_wrr", "nf_conntrack_netlink", "nf_nat"}
	for _, of := range []struct{ prefix, names string }{
		{"", "ip_tables ip6_tables ipt_REJECT ip6t_REJECT"},
		{"iptable_", "filter nat mangle raw"},
		{"ip6table_", "filter nat mangle raw"},
		{"ip_set_", "hash_ip hash_net hash_ipport hash_ipportip hash_ipportnet bitmap_port"},
		{"xt_", "MASQUERADE NETMAP addrtype comment conntrack mark nat set statistic tcpudp"},
	} {
		for name := range strings.FieldsSeq(of.names) {
			modules = append(modules, of.prefix+name)
		}
	}
	return modules
}

// hasIPVS says whether this kernel can run the ipvs mode, as it is or once its modules
// are loaded.
func hasIPVS(ctx context.Context) bool {
	_ = exec.CommandContext(ctx, "modprobe", "-qa", "ip_vs", "dummy").Run() // what is there says whether it could
	_, err := os.Stat("/proc/net/ip_vs")
	return err == nil
}

// oneInGuest measures one proxy on another kernel, in this process's network.
func (c climber) oneInGuest(ctx context.Context, _ proxy.Setting, run *report.Run) (err error) {
	dir := filepath.Join(scratch, "guest")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	programs, err := filepath.Abs(c.programs)
	if err != nil {
		return err
	}
	config, err := os.ReadFile(c.kubeconfig)
	if err != nil {
		return err
	}
	r := request{
		Programs: programs, Kubeconfig: filepath.Join(dir, "kubeconfig"), Parts: c.parts,
		Samples: c.samples, Churn: c.churn, Start: c.start, Run: *run,
	}
	file := filepath.Join(dir, "request.json")
	if err := errors.Join(os.WriteFile(r.Kubeconfig, config, 0o600), r.write(file)); err != nil {
		return err
	}
	if err := errors.Join(network.AddTap(tap), network.RoutePods()); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, network.RemoveLink(tap)) }()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(programs, "secondkernel"),
		"-tap", tap, "-memory", "4096M", "-timeout", (c.start + time.Hour).String(), "-writable", dir, "--", self, "guest", file)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	cmd.Stdout, cmd.Stderr = c.shown, os.Stderr
	err = cmd.Run()
	if read := r.read(file); read != nil {
		return errors.Join(err, read)
	}
	*run = r.Run
	return errors.Join(err, c.cluster.Adopt(ctx))
}

func (r *request) write(file string) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(file, b, 0o600)
}

func (r *request) read(file string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, r)
}

func guestCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "guest REQUEST",
		Short:  "Measure one proxy on this kernel, which is a guest's",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return beGuest(cmd.Context(), cmd.OutOrStdout(), args[0])
		},
	}
}

// beGuest does what a request says and writes into it what was measured.
func beGuest(ctx context.Context, out io.Writer, file string) error {
	var r request
	if err := r.read(file); err != nil {
		return err
	}
	if err := errors.Join(network.MakeBridge(guestAddress), network.Uplink(uplink), os.MkdirAll(scratch, 0o700)); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, "modprobe", append([]string{"-a"}, guestModules()...)...).CombinedOutput(); err != nil {
		return fmt.Errorf("load modules: %w: %s", err, out)
	}
	cluster, err := load.Connect(r.Kubeconfig)
	if err != nil {
		return err
	}
	if err := cluster.Adopt(ctx); err != nil {
		return err
	}
	setting, err := proxy.ParseSetting(r.Run.Mode)
	if err != nil {
		return err
	}
	o := options{programs: r.Programs, parts: r.Parts, samples: r.Samples, churn: r.Churn, start: r.Start}
	c := climber{options: o, kubeconfig: r.Kubeconfig, cluster: cluster, say: progress(out), alone: true}
	err = c.one(ctx, setting, &r.Run)
	return errors.Join(err, r.write(file))
}
