package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/portway/portway/bench/internal/measure"
	"github.com/portway/portway/bench/internal/proxy"
	"github.com/portway/portway/bench/internal/report"
)

// options are what the flags say.
type options struct {
	programs string
	out      string
	shapes   []string
	modes    []string
	parts    []string
	proxies  []string
	repeat   int
	samples  int
	churn    time.Duration
	start    time.Duration
	floors   bool
}

func scaleCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "scale",
		Short: "Measure both proxies with many Services on a real API server",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if os.Getenv(inside) == "" {
				return runInside(cmd.Context())
			}
			return o.scale(cmd.Context(), cmd.OutOrStdout())
		},
	}
	var parts []string
	for _, p := range measure.Parts() {
		parts = append(parts, string(p))
	}
	flags := cmd.Flags()
	flags.StringVar(&o.programs, "programs", "build/bench", "directory with etcd, kube-apiserver, kube-controller-manager, kube-proxy and portway")
	flags.StringVar(&o.out, "out", "build/bench/results", "directory for the results")
	flags.StringSliceVar(&o.shapes, "shapes", []string{"1000x5", "5000x5", "10000x5", "1x1000", "250x100"}, "numbers of Services and of endpoints of each; those that only grow share one API server")
	flags.StringSliceVar(&o.modes, "modes", []string{"iptables-nft", "iptables-legacy", "ipvs"}, "proxy modes")
	flags.StringSliceVar(&o.parts, "parts", parts, "what is measured beside the start")
	flags.StringSliceVar(&o.proxies, "proxies", []string{proxy.Portway, proxy.KubeProxy}, "what is measured; with one of them there are no ratios")
	flags.IntVar(&o.repeat, "repeat", 1, "how often each proxy is measured")
	flags.IntVar(&o.samples, "samples", 30, "how often each change is measured that is measured alone")
	flags.DurationVar(&o.churn, "churn", time.Minute, "how long 100 changes per second last")
	flags.DurationVar(&o.start, "start", 20*time.Minute, "how long a first sync may take")
	flags.BoolVar(&o.floors, "floors", true, "fail if a ratio is below its floor")
	return cmd
}

func (o options) scale(ctx context.Context, out io.Writer) error {
	if err := settleInside(); err != nil {
		return err
	}
	ladders, err := ladders(o.shapes)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	machine, err := machine()
	if err != nil {
		return err
	}
	results := &report.Results{Started: time.Now().UTC(), Machine: machine, Command: strings.Join(slices.Concat([]string{"bench"}, os.Args[1:]), " ")}
	var errs []error
	for _, l := range ladders {
		errs = append(errs, o.climb(ctx, out, l, results))
	}
	errs = append(errs, results.Write(filepath.Join(o.out, "results.json")), results.Plot(o.out))
	errs = append(errs, results.WriteTables(out), o.judge(out, results))
	return errors.Join(errs...)
}

// judge prints what became of the floors.
func (o options) judge(out io.Writer, results *report.Results) error {
	if !o.floors {
		return nil
	}
	missed := 0
	fmt.Fprintln(out)
	for _, v := range results.Judge(report.Floors()) {
		fmt.Fprintln(out, v)
		if !v.Kept {
			missed++
		}
	}
	if missed > 0 {
		return fmt.Errorf("%d floors were missed", missed)
	}
	return nil
}

// ladders groups shapes: those of one ladder have equally many endpoints and
// ever more Services.
func ladders(names []string) ([][]report.Shape, error) {
	var all [][]report.Shape
	for _, name := range names {
		var s report.Shape
		if _, err := fmt.Sscanf(name, "%dx%d", &s.Services, &s.Endpoints); err != nil || s.Services < 1 || s.Endpoints < 1 || s.Endpoints > 1000 {
			return nil, fmt.Errorf("shape %q: not like 1000x5, with at most 1000 endpoints", name)
		}
		if n := len(all); n > 0 {
			if last := all[n-1][len(all[n-1])-1]; last.Endpoints == s.Endpoints && last.Services < s.Services {
				all[n-1] = append(all[n-1], s)
				continue
			}
		}
		all = append(all, []report.Shape{s})
	}
	return all, nil
}

// machine describes the machine in general terms.
func machine() (string, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "", err
	}
	release, _, _ := strings.Cut(unix.ByteSliceToString(name.Release[:]), "-")
	return fmt.Sprintf("%d processors, %s, Linux %s", runtime.NumCPU(), runtime.GOARCH, release), nil
}

func reportCommand() *cobra.Command {
	var plots string
	cmd := &cobra.Command{
		Use:   "report RESULTS...",
		Short: "Print the tables of files of results",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			all := new(report.Results)
			for _, file := range args {
				results, err := report.Read(file)
				if err != nil {
					return err
				}
				all.Runs = append(all.Runs, results.Runs...)
			}
			if plots != "" {
				if err := all.Plot(plots); err != nil {
					return err
				}
			}
			return all.WriteTables(cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&plots, "plots", "", "a directory to draw plots into")
	return cmd
}
