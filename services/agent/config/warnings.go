package config

import (
	"github.com/spf13/pflag"
	"k8s.io/kube-proxy/config/v1alpha1"
)

// unheard is something that kube-proxy may be told and that means nothing
// here.
type unheard struct {
	field string
	flags []string
	isSet func(*v1alpha1.KubeProxyConfiguration) bool
	why   string
}

func unheards() []unheard {
	never := func(*v1alpha1.KubeProxyConfiguration) bool { return false }
	return []unheard{
		{"featureGates", []string{"feature-gates"}, func(c *v1alpha1.KubeProxyConfiguration) bool { return len(c.FeatureGates) > 0 }, "Portway has no feature gates"},
		{"showHiddenMetricsForVersion", []string{"show-hidden-metrics-for-version"}, func(c *v1alpha1.KubeProxyConfiguration) bool { return c.ShowHiddenMetricsForVersion != "" }, "Portway hides no metrics"},
		{"configSyncPeriod", []string{"config-sync-period"}, func(c *v1alpha1.KubeProxyConfiguration) bool {
			return c.ConfigSyncPeriod != Default().ConfigSyncPeriod
		}, "the watch of the API server misses nothing that a second look would find"},
		{"portRange", nil, func(c *v1alpha1.KubeProxyConfiguration) bool { return c.PortRange != "" }, "kube-proxy does not use it either"},
		{"winkernel", nil, func(c *v1alpha1.KubeProxyConfiguration) bool {
			return c.Winkernel != (v1alpha1.KubeProxyWinkernelConfiguration{})
		}, "Portway does not run on Windows"},
		{"windowsRunAsService", nil, func(c *v1alpha1.KubeProxyConfiguration) bool { return c.WindowsRunAsService }, "Portway does not run on Windows"},
		{"logging.flushFrequency", []string{"log-flush-frequency"}, never, "log lines are never held back"},
		{"logging.options", []string{"log-text-split-stream", "log-text-info-buffer-size"}, func(c *v1alpha1.KubeProxyConfiguration) bool {
			o := &c.Logging.Options
			return o.Text.SplitStream || o.JSON.SplitStream || !o.Text.InfoBufferSize.IsZero() || !o.JSON.InfoBufferSize.IsZero()
		}, "log lines go to standard error, unbuffered"},
	}
}

// warnings returns a sentence for each thing that was said and means nothing:
// each flag when flags count, else each part of the file.
func warnings(cfg *v1alpha1.KubeProxyConfiguration, fs *pflag.FlagSet, fromFile bool) []string {
	var list []string
	for _, u := range unheards() {
		if fromFile && u.isSet(cfg) {
			list = append(list, u.field+" in the configuration file has no effect: "+u.why)
		}
		for _, name := range u.flags {
			if fs.Changed(name) {
				list = append(list, "--"+name+" has no effect: "+u.why)
			}
		}
	}
	return list
}
