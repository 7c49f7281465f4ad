package config

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
)

// Options is the command line, and after Complete all that the agent is told.
type Options struct {
	ConfigFile    string
	WriteConfigTo string
	Cleanup       bool
	InitOnly      bool
	Master        string

	Proxy *v1alpha1.KubeProxyConfiguration
	Agent Agent
	// Warnings are sentences about what was said and means nothing.
	Warnings []string

	file                     []byte // contents of ConfigFile
	hostname                 string
	healthzPort, metricsPort int32
}

// NewOptions returns what holds when nothing is said.
func NewOptions() *Options {
	return &Options{Proxy: Default(), Agent: DefaultAgent(), healthzPort: healthzPort, metricsPort: metricsPort}
}

// AddFlags adds kube-proxy's flags and Portway's own.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.ConfigFile, "config", "", "Path of a KubeProxyConfiguration file.")
	fs.StringVar(&o.WriteConfigTo, "write-config-to", "", "Write the configuration to this file, and exit.")
	fs.BoolVar(&o.Cleanup, "cleanup", false, "Remove everything that Portway, or a kube-proxy before it, made in the kernel, and exit. Needs no API server.")
	fs.BoolVar(&o.InitOnly, "init-only", false, "Set what needs more privileges than CAP_NET_ADMIN, and exit.")
	fs.StringVar(&o.Master, "master", "", "URL of the API server, instead of the one in the kubeconfig file.")
	fs.StringVar(&o.hostname, "hostname-override", "", "Name of the Node; otherwise the machine's host name. Beats the configuration file.")
	fs.Int32Var(&o.healthzPort, "healthz-port", o.healthzPort, "The port of /healthz and /livez; 0 for none."+fileWins)
	fs.Int32Var(&o.metricsPort, "metrics-port", o.metricsPort, "The port of /metrics; 0 for none."+fileWins)
	for flag, instead := range map[string]string{"healthz-port": "healthz-bind-address", "metrics-port": "metrics-bind-address"} {
		_ = fs.MarkDeprecated(flag, "use --"+instead) // fails only for flags that do not exist
	}
	addProxyFlags(fs, o.Proxy)
	o.Agent.AddFlags(fs)
}

// Complete reads the configuration file if there is one, which then decides
// alone but for the logging flags and --hostname-override, as in kube-proxy.
func (o *Options) Complete(fs *pflag.FlagSet) error {
	if o.ConfigFile != "" {
		data, cfg, err := load(o.ConfigFile)
		if err != nil {
			return err
		}
		o.file = data
		if err := copyLogging(fs, &cfg.Logging); err != nil {
			return err
		}
		o.Proxy = cfg
	} else {
		o.Proxy.HealthzBindAddress = addressOfPort(o.Proxy.HealthzBindAddress, o.healthzPort)
		o.Proxy.MetricsBindAddress = addressOfPort(o.Proxy.MetricsBindAddress, o.metricsPort)
	}
	if fs.Changed("hostname-override") {
		name := strings.ToLower(strings.TrimSpace(o.hostname))
		if name == "" {
			return errors.New("--hostname-override is empty: it must be the name of the Node")
		}
		o.Proxy.HostnameOverride = name
	}
	o.Warnings = warnings(o.Proxy, fs, o.ConfigFile != "")
	return nil
}

// Validate returns everything that is wrong, in lines.
func (o *Options) Validate(modes []string) error {
	errs := append(Validate(o.Proxy, modes), o.Agent.Validate()...)
	if len(errs) == 0 {
		return nil
	}
	lines := make([]error, len(errs))
	for i, e := range errs {
		lines[i] = e
	}
	return fmt.Errorf("configuration: %w", errors.Join(lines...))
}

// WriteConfig does what --write-config-to says.
func (o *Options) WriteConfig() error {
	data, err := Encode(o.Proxy)
	if err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	if err := os.WriteFile(o.WriteConfigTo, data, 0o644); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	return nil
}

// NodeName returns the name of the Node that this machine is.
func (o *Options) NodeName() (string, error) {
	name := o.Proxy.HostnameOverride
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			return "", fmt.Errorf("host name of this machine: %w; give --hostname-override", err)
		}
		name = host
	}
	name = strings.ToLower(strings.TrimSpace(name))
	if name == "" {
		return "", errors.New("this machine has no host name: give --hostname-override")
	}
	return name, nil
}

// addressOfPort applies a flag that names only the port. An address that has a
// port of its own keeps it.
func addressOfPort(addr string, port int32) string {
	if port == 0 {
		return ""
	}
	return withPort(addr, int(port))
}

// copyLogging lets the logging flags that were given beat the file, so that
// `--config … -v=5` does what it says.
func copyLogging(from *pflag.FlagSet, to *logsapi.LoggingConfiguration) error {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	logsapi.AddFlags(to, fs)
	var err error
	fs.VisitAll(func(f *pflag.Flag) {
		if given := from.Lookup(f.Name); given != nil && given.Changed {
			if e := f.Value.Set(given.Value.String()); e != nil && err == nil {
				err = fmt.Errorf("--%s: %w", f.Name, e)
			}
		}
	})
	return err
}
