package config

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/portway/portway/modules/ipvs"
	"github.com/portway/portway/modules/ipvs/kernel"
)

// All of kube-proxy's settings for the ipvs mode reach it.
func TestIPVSOptions(t *testing.T) {
	o := NewOptions()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.AddFlags(fs)
	err := fs.Parse([]string{
		"--ipvs-scheduler=sh", "--ipvs-exclude-cidrs=10.1.0.0/16,fd00:1::/64", "--ipvs-strict-arp",
		"--ipvs-tcp-timeout=1h", "--ipvs-tcpfin-timeout=1m", "--ipvs-udp-timeout=10s",
	})
	if err == nil {
		err = o.Complete(fs)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(o.Warnings) != 0 {
		t.Errorf("warnings %q", o.Warnings)
	}
	want := ipvs.Options{
		Scheduler: "sh", StrictARP: true,
		ExcludeCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00:1::/64")},
		Timeouts:     kernel.Timeouts{TCP: time.Hour, TCPFin: time.Minute, UDP: 10 * time.Second},
	}
	if got := o.IPVS(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
