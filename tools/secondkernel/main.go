package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// options are what the flags say.
type options struct {
	memory   string
	timeout  time.Duration
	writable []string
	env      []string
	tap      string
	verbose  bool
	command  []string
}

func main() {
	// UML puts words of its own after ours.
	if len(os.Args) > 2 && os.Args[1] == asInit {
		beInit(os.Args[2])
		return
	}
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

// asInit, and a folder, tell the program that it is the guest's init.
const asInit = "secondkernel-init"

// run returns the exit code: that of the command, or 125 if it did not run.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	code, err := tryRun(ctx, args, stdout, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 2
	}
	if err != nil {
		fmt.Fprintf(stderr, "secondkernel: %v\n", err)
		return failed
	}
	return code
}

// failed is the exit code of a command that could not be run, or was stopped at
// the time limit; the one that env, nohup and others use.
const failed = 125

func tryRun(ctx context.Context, args []string, stdout, stderr io.Writer) (int, error) {
	o, err := parse(args, stderr)
	if err != nil {
		return failed, err
	}
	native := probeHost()
	if native == nil {
		fmt.Fprintln(stderr, "secondkernel: this kernel has IPVS; the command runs on it")
		return failed, execHere(o.command)
	}
	k, err := findKernel()
	if err != nil {
		return failed, fmt.Errorf("no kernel to run on: this one cannot serve: %w (cure: modprobe ip_vs); and there is no other: %w", native, err)
	}
	return boot(ctx, k, o, stdout, stderr)
}

func parse(args []string, stderr io.Writer) (o options, err error) {
	f := flag.NewFlagSet("secondkernel", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() {
		fmt.Fprintln(stderr, "usage: secondkernel [flags] [--] command [argument ...]")
		f.PrintDefaults()
	}
	f.StringVar(&o.memory, "memory", "1024M", "memory of the other kernel")
	f.DurationVar(&o.timeout, "timeout", 15*time.Minute, "how long the command may run on the other kernel")
	f.StringVar(&o.tap, "tap", "", "a tap `interface` of the machine, whose other end is vec0 on the other kernel")
	f.BoolVar(&o.verbose, "v", false, "show what the other kernel logs")
	f.Func("writable", "a `folder` that the command may write to; may be repeated", func(s string) error {
		folder, err := filepath.Abs(s)
		o.writable = append(o.writable, folder)
		return errors.Join(err, os.MkdirAll(folder, 0o755))
	})
	f.Func("env", "a `variable` of the environment to pass on; may be repeated", func(s string) error {
		o.env = append(o.env, strings.Split(s, ",")...)
		return nil
	})
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if o.command = f.Args(); len(o.command) == 0 {
		f.Usage()
		return o, flag.ErrHelp
	}
	return o, nil
}

// resolve is the command with the path of its program.
func resolve(command []string) ([]string, error) {
	path, err := exec.LookPath(command[0])
	if err != nil {
		return nil, err
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, err
	}
	return append([]string{path}, command[1:]...), nil
}
