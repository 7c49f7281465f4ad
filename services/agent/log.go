package agent

import (
	"flag"
	"io"
	"log/slog"
	"strconv"

	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"
)

// debugVerbosity is the -v from which this program tells what it does in
// detail.
const debugVerbosity = 4

// NewLogger returns the logger that a configuration asks for, and sends what
// client-go says through klog there too.
func NewLogger(w io.Writer, cfg *logsapi.LoggingConfiguration) *slog.Logger {
	opts := &slog.HandlerOptions{Level: slog.LevelInfo}
	if cfg.Verbosity >= debugVerbosity {
		opts.Level = slog.LevelDebug
	}
	var h slog.Handler = slog.NewTextHandler(w, opts)
	if cfg.Format == "json" {
		h = slog.NewJSONHandler(w, opts)
	}
	log := slog.New(h)
	bridgeKlog(log, cfg)
	return log
}

// bridgeKlog gives klog's lines to a logger. How much klog says is its own
// affair, set by the flags that it has always had.
func bridgeKlog(log *slog.Logger, cfg *logsapi.LoggingConfiguration) {
	var fs flag.FlagSet
	klog.InitFlags(&fs)
	// Neither fails: the values have been checked when they were parsed.
	_ = fs.Set("v", strconv.FormatUint(uint64(cfg.Verbosity), 10))
	_ = fs.Set("vmodule", logsapi.VModuleConfigurationPflag(&cfg.VModule).String())
	klog.SetSlogLogger(log)
}
