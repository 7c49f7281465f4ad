package agent

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/services/agent/config"
	"github.com/portway/portway/services/agent/kernel"
)

// choice is the mode that is run, and what led to it.
type choice struct {
	mode     dataplane.Mode
	families []dataplane.Family
	wanted   string // by name; blank if nobody asked for one
	because  string // why it is not the wanted one; blank if it is
}

// fellBack tells whether another mode than the one that was asked for is used.
func (c choice) fellBack() bool { return c.wanted != "" && c.wanted != c.mode.Name }

// chooser knows what there is to choose from.
type chooser struct {
	modes   []dataplane.Mode
	kernel  []dataplane.Family // the families that the kernel has
	proxy   string             // the mode that is configured
	noOther bool               // the mode that was asked for must be the one
	log     *slog.Logger
}

func newChooser(opts *config.Options, modes []dataplane.Mode, machine kernel.Machine, log *slog.Logger) *chooser {
	c := &chooser{
		modes: remembered(modes), kernel: machine.UsableFamilies(), proxy: string(opts.Proxy.Mode),
		noOther: opts.Agent.ModeFallback == config.Error, log: log,
	}
	if !slices.Contains(c.kernel, dataplane.IPv6) {
		log.Info("The kernel has no IPv6: serving IPv4 only")
	}
	return c
}

// remembered are the modes with Probes that look only once: they run programs,
// and are asked before and after the Node is known.
func remembered(modes []dataplane.Mode) []dataplane.Mode {
	with := slices.Clone(modes)
	for i, m := range modes {
		known := make(map[dataplane.Family]error)
		with[i].Probe = func(ctx context.Context, f dataplane.Family) error {
			err, ok := known[f]
			if !ok {
				err = m.Probe(ctx, f)
				known[f] = err
			}
			return err
		}
	}
	return with
}

// check returns an error if no mode can run on this machine, whatever its Node
// says, or not the one that must. To probe also loads kernel modules.
func (c *chooser) check(ctx context.Context) error {
	order := fallbackOrder(c.modes, c.proxy)
	if c.proxy != "" && c.noOther {
		order = order[:1]
	}
	var first error
	for _, f := range c.kernel {
		_, err := dataplane.Choose(ctx, c.modes, order, []dataplane.Family{f})
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// choose decides for a Node with addresses in some families and perhaps an
// annotation that names a mode. The mode must run in the families of the Node;
// the others are served if it happens to run there too.
func (c *chooser) choose(ctx context.Context, annotation string, node []dataplane.Family) (choice, error) {
	ch := choice{wanted: c.wish(annotation)}
	for _, f := range node {
		if slices.Contains(c.kernel, f) {
			ch.families = append(ch.families, f)
		} else {
			c.log.Warn("The Node has an address of a family that the kernel does not have", "family", f.String())
		}
	}
	if len(ch.families) == 0 {
		ch.families = c.kernel[:1]
	}
	found, err := dataplane.Choose(ctx, c.modes, fallbackOrder(c.modes, ch.wanted), ch.families)
	if err != nil {
		return ch, err
	}
	ch.mode = found.Mode
	for _, r := range found.Refused {
		if r.Mode == ch.wanted {
			ch.because = r.Err.Error()
		}
	}
	if ch.fellBack() && c.noOther {
		return ch, fmt.Errorf("the mode %s cannot run here, and --mode-fallback=error forbids another: %s", ch.wanted, ch.because)
	}
	c.addFamilies(ctx, &ch)
	return ch, nil
}

// wish is what the owner of the cluster asked for. A name that does not exist
// counts for nothing in an annotation, which may come to all nodes at once.
func (c *chooser) wish(annotation string) string {
	if c.proxy != "" || annotation == "" {
		return c.proxy
	}
	if !slices.Contains(ModeNames(c.modes), annotation) {
		c.log.Error("The Node's annotation names no proxy mode", "annotation", modeAnnotation, "value", annotation)
		return ""
	}
	return annotation
}

func (c *chooser) addFamilies(ctx context.Context, ch *choice) {
	for _, f := range c.kernel {
		if slices.Contains(ch.families, f) {
			continue
		}
		if err := ch.mode.Probe(ctx, f); err != nil {
			c.log.Info("Not serving a family in which the Node has no address", "family", f.String(), "reason", err)
			continue
		}
		ch.families = append(ch.families, f)
	}
	slices.Sort(ch.families)
}
