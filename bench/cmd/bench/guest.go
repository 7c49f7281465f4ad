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

// hasIPVS says whether this kernel can run the ipvs mode.
func hasIPVS() bool {
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
		"-tap", tap, "-memory", "4096M", "-timeout", "1h", "-writable", dir, "--", self, "guest", file)
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
	if out, err := exec.CommandContext(ctx, "modprobe", "-a", "ip_vs", "dummy", "nlmon").CombinedOutput(); err != nil {
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
