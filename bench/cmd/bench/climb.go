package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/portway/portway/bench/internal/controlplane"
	"github.com/portway/portway/bench/internal/load"
	"github.com/portway/portway/bench/internal/measure"
	"github.com/portway/portway/bench/internal/network"
	"github.com/portway/portway/bench/internal/proxy"
	"github.com/portway/portway/bench/internal/report"
)

// scratch is where files are written that end with this process.
const scratch = "/run/bench"

var serviceRange = netip.MustParsePrefix("10.96.0.0/12")

// climb measures the shapes of a ladder on one API server.
func (o options) climb(ctx context.Context, out io.Writer, ladder []report.Shape, results *report.Results) (err error) {
	if err := network.MakeBridge(network.API); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, network.RemoveLink(network.Bridge)) }()
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	say := progress(out)
	say("start etcd, kube-apiserver and kube-controller-manager")
	plane, err := controlplane.Start(ctx, controlplane.Config{
		Kubernetes: o.programs, Etcd: filepath.Join(o.programs, "etcd"), Dir: filepath.Join(scratch, "controlplane"),
		Address: network.API, Port: load.APIPort, Services: serviceRange,
	})
	if err != nil {
		return err
	}
	defer plane.Stop()
	cluster, err := load.Connect(plane.Kubeconfig)
	if err != nil {
		return err
	}
	if err := cluster.Prepare(ctx); err != nil {
		return err
	}
	there := 0
	var errs []error
	for _, shape := range ladder {
		say(fmt.Sprintf("make %d Services with %d endpoints each", shape.Services-there, shape.Endpoints))
		if err := cluster.Grow(ctx, there, shape.Services, shape.Endpoints); err != nil {
			return err
		}
		there = shape.Services
		c := climber{options: o, shown: out, kubeconfig: plane.Kubeconfig, cluster: cluster, say: say}
		errs = append(errs, c.measure(ctx, shape, results))
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// climber measures on one API server.
type climber struct {
	options
	shown      io.Writer
	kubeconfig string
	cluster    *load.Cluster
	say        func(string)
	alone      bool // this kernel does nothing else
}

func (c climber) measure(ctx context.Context, shape report.Shape, results *report.Results) error {
	var errs []error
	for _, mode := range c.modes {
		setting, err := proxy.ParseSetting(mode)
		if err != nil {
			return err
		}
		for repetition := range c.repeat {
			for _, name := range c.turn(repetition) {
				run := report.Run{Shape: shape, Mode: mode, Proxy: name, Repetition: repetition}
				err := c.where(ctx, setting)(ctx, setting, &run)
				results.Runs = append(results.Runs, run)
				// What was measured stays, also when the rest goes wrong.
				err = errors.Join(err, results.Write(filepath.Join(c.out, "results.json")))
				if err != nil {
					errs = append(errs, fmt.Errorf("%s, %s, %s: %w", shape, mode, name, err))
				}
				if ctx.Err() != nil {
					return errors.Join(errs...)
				}
			}
		}
	}
	return errors.Join(errs...)
}

// turn is the order of the proxies in one repetition: each is the first in turn.
func (c climber) turn(repetition int) []string {
	names := slices.Clone(c.proxies)
	if repetition%2 == 1 {
		slices.Reverse(names)
	}
	return names
}

// where chooses the kernel: this one, unless it lacks what the mode needs.
func (c climber) where(ctx context.Context, setting proxy.Setting) func(context.Context, proxy.Setting, *report.Run) error {
	if setting.Mode == "ipvs" && !hasIPVS(ctx) {
		return c.oneInGuest
	}
	return c.one
}

// one measures one proxy on this kernel.
func (c climber) one(ctx context.Context, setting proxy.Setting, run *report.Run) (err error) {
	dir, err := os.MkdirTemp(scratch, run.Proxy+"-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	program, err := filepath.Abs(filepath.Join(c.programs, run.Proxy))
	if err != nil {
		return err
	}
	cfg := measure.Config{
		Alone: c.alone, Cluster: c.cluster, Services: run.Shape.Services, Samples: c.samples, Churn: c.churn, Start: c.start,
		Proxy: proxy.Config{Name: run.Proxy, Program: program, Setting: setting, Kubeconfig: c.kubeconfig, Dir: dir},
		Say:   func(what string) { c.say(fmt.Sprintf("%s, %s, %s: %s", run.Shape, run.Mode, run.Proxy, what)) },
	}
	for _, p := range c.parts {
		cfg.Parts = append(cfg.Parts, measure.Part(p))
	}
	run.Figures, err = measure.Run(ctx, cfg)
	if err != nil {
		run.Failed = err.Error()
	}
	return err
}

// progress says what is being done, and since when all is.
func progress(out io.Writer) func(string) {
	start := time.Now()
	return func(what string) {
		fmt.Fprintf(out, "%6.0f s  %s\n", time.Since(start).Seconds(), what)
	}
}
