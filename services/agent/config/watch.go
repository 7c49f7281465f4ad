package config

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"time"

	"k8s.io/kube-proxy/config/v1alpha1"
)

// Watch says how the configuration file is looked after.
type Watch struct {
	// Every is how often it is looked at.
	Every time.Duration
	// Valid says what is wrong with a configuration.
	Valid func(*v1alpha1.KubeProxyConfiguration) error
	// Refused is told, once, why what the file holds now is not used.
	Refused func(error)
}

// AwaitChange returns an error when the configuration file holds another
// configuration than the one that was read: as kube-proxy does, the process
// ends then, to be started again. It returns nil when the context ends, and at
// once if there is no file.
//
// The contents are compared, because a ConfigMap's file is a symbolic link that
// is exchanged, which those do not see who watch the file that it led to. A file
// that cannot be read or is wrong does not count: a slip must not end a process
// that works.
func (o *Options) AwaitChange(ctx context.Context, w Watch) error {
	if o.ConfigFile == "" {
		return nil
	}
	tick := time.NewTicker(w.Every)
	defer tick.Stop()
	last, told := o.file, ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now, err := os.ReadFile(o.ConfigFile)
		switch {
		case err != nil:
		case bytes.Equal(now, last):
			continue
		default:
			last = now
			err = w.check(now)
		}
		if err == nil && !bytes.Equal(now, o.file) {
			return fmt.Errorf("the configuration file %s has changed", o.ConfigFile)
		}
		if err != nil && err.Error() != told {
			told = err.Error()
			w.Refused(fmt.Errorf("configuration file %s: %w", o.ConfigFile, err))
		}
	}
}

func (w *Watch) check(data []byte) error {
	cfg, err := Decode(data)
	if err != nil {
		return err
	}
	return w.Valid(cfg)
}
